"""A ready training function for any JAX model: noisescale's own engine."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from noisescale.arrays import count_examples
from noisescale.checks import check_callable, check_choice
from noisescale.jobs.identity import Identity, identity_of

Pair = tuple[ArrayLike, ArrayLike]


@dataclass(frozen=True, eq=False)
class JaxTrainFunction:
    """See :func:`train_function`."""

    apply_fn: Callable[..., Any]
    init: Callable[[int], Any]
    train_data: tuple[Any, Any]
    validation_data: tuple[Any, Any]
    settings: dict[str, Any]
    metric: str
    identity: Identity = field(repr=False)

    @property
    def n_train(self) -> int:
        """The number of training examples."""
        return len(self.train_data[1])

    def __call__(
        self, *, batch_size: int, learning_rate: float, momentum: float, steps: int, seed: int
    ) -> float:
        """Train, and score on the validation data; NaN if training diverged."""
        # Imported late: the tuner itself has no need of JAX.
        from noisescale.training import train

        run = train(
            self.apply_fn,
            self.init(seed),
            self.train_data,
            batch_size=batch_size,
            learning_rate=learning_rate,
            momentum=momentum,
            steps=steps,
            seed=seed,
            test_data=self.validation_data,
            evaluate_at="final",
            **self.settings,
        )
        if run.final is None or run.status != "done":
            return math.nan
        accuracy, entropy = run.final.test_accuracy, run.final.test_cross_entropy
        return float(accuracy if self.metric == "accuracy" else -entropy)


def train_function(
    apply_fn: Callable[..., Any],
    init: Callable[[int], Any],
    train_data: Pair,
    validation_data: Pair,
    *,
    metric: str = "accuracy",
    likelihood: str = "categorical",
    prior_precision: float = 0.0,
    sampler: str = "without_replacement",
) -> JaxTrainFunction:
    """A function to tune, for a JAX model trained by :func:`noisescale.train`.

    Args:
        apply_fn: ``(params, x) -> logits``.
        init: ``init(seed)`` draws parameters.
        train_data, validation_data: ``(x, y)``; keep test data out of both.
        metric: ``"accuracy"``, or ``"log_likelihood"`` per example.
        likelihood, prior_precision, sampler: as in :func:`noisescale.train`.
    """
    from noisescale.training import Settings

    check_callable("apply_fn", apply_fn)
    check_callable("init", init)
    check_choice("metric", metric, ("accuracy", "log_likelihood"))
    n_train = count_examples(train_data, "train_data")
    count_examples(validation_data, "validation_data")
    arrays = [np.asarray(array) for array in (*train_data, *validation_data)]
    settings: dict[str, Any] = {
        "likelihood": likelihood,
        "prior_precision": prior_precision,
        "sampler": sampler,
    }
    Settings(  # refuses what is wrong
        learning_rate=1.0,
        batch_size=1,
        momentum=0.0,
        n_train=n_train,
        steps=0,
        cost_convention="per_example",
        seed=0,
        **settings,
    )
    return JaxTrainFunction(
        apply_fn,
        init,
        (arrays[0], arrays[1]),
        (arrays[2], arrays[3]),
        settings,
        metric,
        identity=identity_of("jax", arrays, apply_fn, init, settings, metric),
    )
