"""From an optimiser's weight decay to the prior precision that it stands for, and back.

Training minimises a mean of N terms; the evidence is about their sum, C = sum nll + lambda/2 |w|^2.

    SGD     w <- w - eps (g + d w)                     stands still where grad C = 0, lambda = N d
    Adam    m and v of g + d w, w <- w - eps m/(sqrt(v) + e)       likewise: lambda = N d
    AdamW   w <- w - eps (m/(sqrt(v) + e) + d w)       lambda_i = N d (sqrt(v_i) + e)

with g the gradient of the mean and v Adam's average of its squares, its bias corrected. For SGD the
mapping is exact, with momentum too. For Adam it is exact where training has converged, and only
there: on the way the penalty is divided by sqrt(v) like everything else, so weights of large
gradients hardly decay. AdamW has a prior precision of its own for each parameter, which moves with
v: where noise dominates v is nearly constant and the mapping good, elsewhere it says which Gaussian
prior the last steps were balanced against.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisescale.checks import check_choice, check_number, check_whole
from noisescale.errors import InputError

OPTIMIZERS = ("sgd", "adam", "adamw")


def prior_precision_of(
    weight_decay: float,
    *,
    n_train: int,
    optimizer: str = "sgd",
    second_moment: Any = None,
    eps: float = 1e-8,
) -> Any:
    """The prior precision that a weight decay stands for.

    Args:
        weight_decay: d, as the optimiser is given it.
        n_train: how many terms the loss is the mean of: examples, or tokens for a language model.
        optimizer: ``"sgd"``, ``"adam"`` (whose weight decay is part of the gradient) or ``"adamw"``
            (decoupled).
        second_moment: for AdamW the average v of squared gradients, its bias corrected: a number,
            an array, or a mapping of those by parameter.
        eps: AdamW's.

    Returns:
        A number; for AdamW in the form of ``second_moment``.

    >>> import noisescale as ns
    >>> round(ns.prior_precision_of(5e-4, n_train=50_000), 6)
    25.0
    >>> round(ns.prior_precision_of(0.01, n_train=1000, optimizer="adamw", second_moment=0.04), 6)
    2.0
    """
    check_number("weight_decay", weight_decay, "at least 0", lambda v: v >= 0)
    scale = _scale(n_train, optimizer, second_moment, eps)
    return _each(scale, lambda s: weight_decay * s)


def weight_decay_of(
    prior_precision: float,
    *,
    n_train: int,
    optimizer: str = "sgd",
    second_moment: Any = None,
    eps: float = 1e-8,
) -> Any:
    """The weight decay that stands for a prior precision: :func:`prior_precision_of` backwards.

    For AdamW each parameter would need its own, in the form of ``second_moment``.

    >>> import noisescale as ns
    >>> ns.weight_decay_of(25.0, n_train=50_000)
    0.0005
    """
    check_number("prior_precision", prior_precision, "at least 0", lambda v: v >= 0)
    scale = _scale(n_train, optimizer, second_moment, eps)
    return _each(scale, lambda s: prior_precision / s)


def _scale(n_train: int, optimizer: str, second_moment: Any, eps: float) -> Any:
    """Prior precision over weight decay."""
    N = check_whole("n_train", n_train, at_least=1)
    if check_choice("optimizer", optimizer, OPTIMIZERS) != "adamw":
        if second_moment is not None:
            raise InputError(f"second_moment is AdamW's alone: optimizer is {optimizer!r}.")
        return float(N)
    check_number("eps", eps, "above 0", lambda v: v > 0)
    if second_moment is None:
        raise InputError(
            "AdamW's prior precision depends on second_moment, its average of squared gradients: "
            "noisescale.torch.prior_precision_of(optimizer, module, n_train=...) reads it."
        )
    return _each(second_moment, lambda v: N * (np.sqrt(_squares(v)) + eps))


def _squares(v: Any) -> NDArray[np.float64]:
    try:
        values = np.asarray(v, np.float64)
    except (TypeError, ValueError):
        values = np.array(np.nan)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise InputError("second_moment must be finite numbers at least 0.")
    return values


def _each(values: Any, function: Any) -> Any:
    """Of a number, an array, or the values of a mapping."""
    if isinstance(values, dict):
        return {name: _each(value, function) for name, value in values.items()}
    result = function(values)
    return float(result) if np.ndim(result) == 0 else result
