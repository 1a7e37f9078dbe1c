"""A ready training function for scikit-learn's networks."""

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from noisescale.errors import InputError
from noisescale.jobs.identity import Identity, identity_of
from noisescale.seeds import random_stream
from noisescale.training.sampling import BatchStream

_NEEDED = ("batch_size", "learning_rate_init", "momentum", "random_state")


@dataclass(frozen=True, eq=False)
class SklearnTrainFunction:
    """See :func:`train_function`."""

    estimator: Any
    train_data: tuple[Any, Any]
    validation_data: tuple[Any, Any]
    identity: Identity = field(repr=False)

    @property
    def n_train(self) -> int:
        """The number of training examples."""
        return len(self.train_data[1])

    def __call__(
        self, *, batch_size: int, learning_rate: float, momentum: float, steps: int, seed: int
    ) -> float:
        """Train, and score on the validation data; NaN if training diverged."""
        from sklearn.base import clone

        estimator = clone(self.estimator).set_params(
            batch_size=batch_size,
            learning_rate_init=learning_rate,
            momentum=momentum,
            random_state=seed,
        )
        x, y = self.train_data
        extra = {"classes": np.unique(y)} if hasattr(estimator, "predict_proba") else {}
        rng = random_stream(seed, "batches")
        batches = BatchStream("without_replacement", n_train=len(y), batch_size=batch_size, rng=rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # overflow, which the score will tell
            try:
                for _ in range(steps):  # a batch a call is an update a call
                    (batch,) = batches.take(1)
                    estimator.partial_fit(x[batch], y[batch], **extra)
                return float(estimator.score(*self.validation_data))
            except ValueError as error:
                # scikit-learn refuses weights that are no longer finite.
                if any(not np.isfinite(w).all() for w in getattr(estimator, "coefs_", ())):
                    return math.nan
                raise error


def train_function(
    estimator: Any,
    train_data: tuple[ArrayLike, ArrayLike],
    validation_data: tuple[ArrayLike, ArrayLike],
) -> SklearnTrainFunction:
    """A function to tune, for ``MLPClassifier`` or ``MLPRegressor`` with ``solver="sgd"``.

    The estimator is copied for every run; its batch size, learning rate, momentum and random state
    are set, everything else stays. The score is its own: accuracy, or R squared. Set
    ``nesterovs_momentum=False`` for the momentum that the paper's rule speaks of.
    """
    lacking = [n for n in _NEEDED if n not in getattr(estimator, "get_params", dict)()]
    if lacking or not hasattr(estimator, "partial_fit"):
        missing = lacking[0] if lacking else "partial_fit"
        raise InputError(
            f"estimator must be an SGD network of scikit-learn, such as MLPClassifier(solver="
            f"'sgd'), but {type(estimator).__name__} has no {missing}."
        )
    if getattr(estimator, "solver", "sgd") != "sgd":
        raise InputError(
            f"the scaling rule is for SGD: give the estimator solver='sgd', it has "
            f"{estimator.solver!r}."
        )
    arrays = [np.asarray(array) for array in (*train_data, *validation_data)]
    return SklearnTrainFunction(
        estimator,
        (arrays[0], arrays[1]),
        (arrays[2], arrays[3]),
        identity=identity_of("sklearn", arrays, type(estimator), estimator.get_params()),
    )
