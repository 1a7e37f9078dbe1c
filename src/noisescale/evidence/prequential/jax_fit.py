"""A ready fit for any JAX model: noisescale's own SGD."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisescale.checks import check_callable, check_choice, check_whole
from noisescale.evidence.prequential.fits import Fit

_ROWS = 4_096  # examples predicted at once


@dataclass(frozen=True)
class JaxFit:
    """See :func:`fit_function`."""

    apply_fn: Callable[..., Any]
    init: Callable[[int], Any]
    batch_size: int
    settings: tuple[tuple[str, Any], ...]

    real = False

    def __call__(
        self, x: NDArray[Any], y: NDArray[Any], *, seed: int
    ) -> Callable[[NDArray[Any]], NDArray[np.float64]]:
        """Train from ``init(seed)``; the answer gives probabilities."""
        import jax

        from noisescale.training import train  # imported late: users of others need no JAX

        settings = dict(self.settings)
        run = train(
            self.apply_fn,
            self.init(seed),
            (x, y),
            batch_size=min(self.batch_size, len(y)),
            seed=seed,
            evaluate_at="final",
            **settings,
        )
        binary = settings["likelihood"] == "bernoulli"

        def predict(x: NDArray[Any]) -> NDArray[np.float64]:
            parts = [
                np.asarray(self.apply_fn(run.params, x[k : k + _ROWS]), np.float64)
                for k in range(0, len(x), _ROWS)
            ]
            logits = np.concatenate(parts).reshape(len(x), -1)
            if run.status != "done" or not np.isfinite(logits).all():
                # Training diverged: it has learnt nothing, and says so.
                logits = np.zeros_like(logits)
            if binary:
                logits = np.hstack([np.zeros_like(logits), logits])
            with jax.enable_x64(True):
                return np.asarray(jax.nn.softmax(logits, axis=1))

        return predict


def fit_function(
    apply_fn: Callable[..., Any],
    init: Callable[[int], Any],
    *,
    batch_size: int,
    learning_rate: float,
    steps: int,
    momentum: float = 0.0,
    prior_precision: float = 0.0,
    likelihood: str = "categorical",
    cost_convention: str = "per_example",
    sampler: str = "without_replacement",
) -> Fit:
    """A ``fit`` for :func:`prequential_evidence`: a JAX model trained by :func:`noisescale.train`.

    Every training makes the same number of updates, with batches of ``batch_size`` or of all
    examples there are. One that diverges predicts all classes alike.

    Args:
        apply_fn: ``(params, x) -> logits``.
        init: ``init(seed)`` draws parameters.
        batch_size, learning_rate, steps, momentum: the recipe.
        likelihood: ``"categorical"`` or ``"bernoulli"``; a regressor has to predict a standard
            deviation, too, and is a function of one's own.
        prior_precision, cost_convention, sampler: as in :func:`noisescale.train`.

    >>> import noisescale as ns
    >>> network = ns.DenseNetwork((64, 20, 10))
    >>> fit = fit_function(network, network.init, batch_size=30, learning_rate=0.1, steps=500)
    """
    from noisescale.training import Settings

    check_callable("apply_fn", apply_fn)
    check_callable("init", init)
    check_choice("likelihood", likelihood, ("categorical", "bernoulli"))
    settings: dict[str, Any] = {
        "learning_rate": learning_rate,
        "steps": steps,
        "momentum": momentum,
        "prior_precision": prior_precision,
        "likelihood": likelihood,
        "cost_convention": cost_convention,
        "sampler": sampler,
    }
    batch_size = check_whole("batch_size", batch_size, at_least=1)
    Settings(batch_size=batch_size, n_train=batch_size, seed=0, **settings)  # refuses what is wrong
    return JaxFit(apply_fn, init, batch_size, tuple(settings.items()))
