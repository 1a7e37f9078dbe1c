"""The log Occam factor of a curvature H against a diagonal prior precision L.

With mu_i the eigenvalues of L^-1/2 H L^-1/2 it is -1/2 sum ln(1 + mu_i). The paper keeps the
eigenvalues lambda_i >= lambda of the whole cost, which are those with mu_i >= 0.

Each method of this room (dense, dual, lanczos, kfac, diagonal) has the same names in this order:
``refusal`` (why it cannot, or None), ``cost`` (bytes and arithmetic, counted), ``term`` (the Occam
factor under L), ``curve`` (the log Occam factor against one precision).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from noisescale.checks import check_number, check_whole
from noisescale.errors import InputError
from noisescale.evidence.problem import Facts, Problem

Array = NDArray[np.float64]
Curve = Callable[[float], float]

NOT_CONVEX = (
    "the negative log-likelihood is not convex in the outputs, so its Gauss-Newton matrix has no "
    "square root: use method='dense' or 'lanczos'."
)
ONLY_GGN = (
    "needs curvature='ggn': the Hessian is not a product of Jacobians; use method='dense' or "
    "'lanczos'."
)


@dataclass(frozen=True)
class Occam:
    """Log Occam factors and what the curvature says of the point.

    Attributes:
        restricted: -1/2 sum of ln(1 + mu) over mu >= 0, never positive.
        full: the same over all mu; None unless every 1 + mu is positive (a minimum).
        n_negative: the number of mu below zero, beyond rounding.
        negative_weight: minus the sum of those mu, in units of the prior precision.
        newton_decrement: grad' (H + L)^-1 grad, over directions of positive curvature.
    """

    restricted: float
    full: float | None
    n_negative: int
    negative_weight: float
    newton_decrement: float


@dataclass(frozen=True)
class Term:
    """An Occam factor with its standard error, and how it was got."""

    occam: Occam
    std: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Accuracy:
    """How ``lanczos`` goes about it; the other methods have nothing to choose.

    Attributes:
        tolerance: in nats of the log evidence, the standard error to reach; by default 1 % of the
            log Occam factor.
        max_probes: give up after so many.
        n_steps: Lanczos steps a probe.
        seed: decides the probes.
        progress: called now and then with how far it is, whatever the method.
    """

    tolerance: float | None = None
    max_probes: int = 64
    n_steps: int = 64
    seed: int = 0
    progress: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None:
            check_number("tolerance", self.tolerance, ">= 0", lambda v: v >= 0)
        check_whole("max_probes", self.max_probes, at_least=2)
        check_whole("n_steps", self.n_steps, at_least=2)
        check_whole("seed", self.seed, at_least=0)


class Method(Protocol):
    """What every module of this room offers."""

    def refusal(self, facts: Facts, curvature: str) -> str | None:
        """Why the method cannot do this, after its name; None if it can."""
        ...

    def cost(self, facts: Facts, curvature: str) -> tuple[float, float]:
        """Bytes held and floating-point operations."""
        ...

    def term(
        self, problem: Problem, L: Array, slope: Array, curvature: str, accuracy: Accuracy
    ) -> Term:
        """The Occam factor; ``slope`` is the gradient of the whole cost."""
        ...

    def curve(
        self,
        problem: Problem,
        curvature: str,
        accuracy: Accuracy,
        *,
        smallest: float,
        n_values: int,
    ) -> Curve:
        """The log Occam factor as a function of one precision, from ``smallest`` on.

        ``n_values`` is how many will be asked for.
        """
        ...


def occam_of_eigenvalues(mu: Array, along: Array, length: float) -> Occam:
    """From eigenvalues, the scaled gradient along their vectors, and its whole squared length."""
    # Rounding leaves exact zeros (dead pixels, say) at about p times the machine's epsilon.
    noise = len(mu) * np.finfo(float).eps * np.abs(mu).max(initial=0.0)
    mu = np.where(np.abs(mu) <= noise, 0.0, mu)
    kept = mu > -1
    outside = max(length - float(along @ along), 0.0)  # where the curvature is zero
    return Occam(
        restricted=-0.5 * float(np.log1p(mu[mu > 0]).sum()),
        full=-0.5 * float(np.log1p(mu).sum()) if kept.all() else None,
        n_negative=int((mu < 0).sum()),
        negative_weight=float(-mu[mu < 0].sum()),
        newton_decrement=float((along[kept] ** 2 / (1 + mu[kept])).sum()) + outside,
    )


def curve_of_eigenvalues(h: Array, weights: Array, p: int) -> Curve:
    """-1/2 sum of weights ln(1 + h/lambda) over h > 0, beyond rounding."""
    noise = p * np.finfo(float).eps * np.abs(h).max(initial=0.0)
    h, weights = h[h > noise], weights[h > noise]
    return lambda precision: -0.5 * float(weights @ restricted_log(h / precision))


def restricted_log(mu: Array) -> Array:
    """ln(1 + mu) where mu >= 0, nothing elsewhere."""
    return np.log1p(np.maximum(mu, 0))


def check_curvature(matrix: Array) -> Array:
    """A curvature that is finite, or one sentence: LAPACK would not say why."""
    if not np.isfinite(matrix).all():
        raise InputError(
            "the curvature is not finite at these parameters: scale the inputs or the parameters "
            "down."
        )
    return matrix
