"""Posterior samples and how they are asked for."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisescale.checks import (
    check_batch_size,
    check_memory,
    check_momentum,
    check_number,
    check_whole,
)
from noisescale.errors import InputError
from noisescale.noise.diagnostics import BLOCK, BYTES
from noisescale.noise.stability import check_step
from noisescale.notebook import Displayed

Array = NDArray[Any]

_SAFE = 0.1  # of the unstable step size, halved: the stiffest variance is 5 % too large
_HELD = 8.0  # bytes a number drawn: in float32, and once more of the chains that stayed finite


@dataclass(frozen=True, kw_only=True)
class LangevinSettings:
    """How to sample; see :func:`noisescale.langevin`. Wrong ones are refused here."""

    prior_precision: float
    temperature: float
    step_size: float | None
    momentum: float
    batch_size: int | None
    n_chains: int
    burn_in: int
    n_samples: int
    thin: int
    seed: int

    def __post_init__(self) -> None:
        check_number("prior_precision", self.prior_precision, "above 0", lambda v: v > 0)
        check_number("temperature", self.temperature, "at least 0", lambda v: v >= 0)
        check_momentum(self.momentum)
        least = {"n_chains": 1, "burn_in": 0, "n_samples": 4, "thin": 1, "seed": 0}
        for name, value in least.items():
            whole = check_whole(name, getattr(self, name), at_least=value)
            object.__setattr__(self, name, whole)

    def check_sizes(self, n_train: int, n_params: int) -> None:
        """Refuse batches that show no noise, and draws that do not fit into memory."""
        if self.batch_size is not None and check_batch_size(self.batch_size, n_train) < 2:
            raise InputError(
                "batch_size must be at least 2, so that a batch shows its noise, got 1."
            )
        draws = self.n_chains * self.n_samples
        need = _HELD * draws * n_params + BYTES * max(BLOCK, draws)
        check_memory("the samples", need, "draw fewer, or thin more")

    def step_for(self, curvature: float) -> float:
        """The step to take where the largest curvature is this."""
        d = self.step_size
        if d is None:
            d = _SAFE * (1 + self.momentum) / curvature
        check_number("step_size", d, "above 0", lambda v: v > 0)
        return float(check_step(d, curvature, self.momentum))

    def discretisation(self, step: float, curvature: float) -> float:
        """By how much of itself the variance in the stiffest direction is too large."""
        used = step * curvature / (2 * (1 + self.momentum))  # of the largest stable step
        return 1 / (1 - used) - 1 if used < 1 else math.inf


def kept_chains(draws: Mapping[str, Array], step: float) -> NDArray[np.bool_]:
    """Which chains stayed finite; ``draws`` are (chains, draws, ...) by name."""
    parts = [np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1) for leaf in draws.values()]
    finite = np.asarray(np.all(parts, axis=0))
    if not finite.any():
        raise InputError(
            f"all {len(finite)} chains diverged at step_size {step:.3g}: choose a smaller one, the "
            "curvature away from the start is larger than at it."
        )
    return finite


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorSamples(Displayed):
    """Draws from exp(-C/T), with what is needed to trust them.

    Attributes:
        samples: as the params, each array with leading axes (chains, draws).
        r_hat, ess: split R-hat and effective sample size, as the params.
        step_size: the step taken.
        largest_curvature: the Hessian's largest eigenvalue, where the chains started or where they
            ended, whichever is larger.
        discretisation: by how much of itself the variance in the stiffest direction is too large;
            infinite if the step is unstable there.
        n_diverged: chains that did not stay finite; their draws are left out.
        temperature, momentum, batch_size: as given.

    >>> import noisescale as ns
    >>> model = ns.softmax_regression(1, 2)
    >>> pair = ([[-1.0], [1.0]], [0, 1])
    >>> samples = ns.langevin(model, model.init(0), pair, prior_precision=1.0, n_samples=20)
    >>> samples.samples[0]["w"].shape
    (4, 20, 1, 2)
    >>> samples.to_dict()["n_diverged"]
    0
    """

    samples: Any
    r_hat: Any
    ess: Any
    step_size: float
    largest_curvature: float
    discretisation: float
    n_diverged: int
    temperature: float
    momentum: float
    batch_size: int | None
    _arrays: Callable[[Any], Mapping[str, Array]]  # by name, of what has the params' structure
    _predict: Callable[[Any], NDArray[np.float64]]

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(next(iter(self._arrays(self.samples).values())).shape[:2])

    @property
    def worst_r_hat(self) -> float:
        """The largest R-hat of any parameter."""
        return float(max(np.nanmax(leaf) for leaf in self._arrays(self.r_hat).values()))

    @property
    def smallest_ess(self) -> float:
        """The smallest effective sample size of any parameter."""
        return float(min(np.nanmin(leaf) for leaf in self._arrays(self.ess).values()))

    def predict_proba(self, x: Any) -> NDArray[np.float64]:
        """Class probabilities averaged over the samples, one row an example."""
        return self._predict(x)

    def to_arviz(self) -> dict[str, dict[str, NDArray[Any]]]:
        """What ``arviz.from_dict`` takes: parameters by name, axes (chain, draw, ...)."""
        return {"posterior": dict(self._arrays(self.samples))}

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name, without the draws; None for what is not finite."""
        chains, draws = self._shape
        names = ("step_size", "largest_curvature", "discretisation", "n_diverged", "temperature")
        values = {name: getattr(self, name) for name in (*names, "momentum", "batch_size")}
        values |= {
            "n_chains": chains,
            "n_samples": draws,
            "worst_r_hat": self.worst_r_hat,
            "smallest_ess": self.smallest_ess,
        }
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }

    def __repr__(self) -> str:
        chains, draws = self._shape
        return (
            f"PosteriorSamples: {chains} chains of {draws} draws at T = {self.temperature:g}, "
            f"{self.n_diverged} diverged\n"
            f"  worst R-hat {self.worst_r_hat:.3f}, smallest effective sample size "
            f"{self.smallest_ess:.0f}, step {self.step_size:.3g} ({self._bias()})"
        )

    def _bias(self) -> str:
        if math.isinf(self.discretisation):
            return "unstable where the chains ended: choose a smaller one"
        return f"variance up to {self.discretisation:.1%} too large"
