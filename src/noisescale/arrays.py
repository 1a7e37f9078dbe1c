"""Data and parameters that users give: checked in one place, refused with one sentence.

JAX is imported by what needs it: PyTorch's users need none of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisescale.errors import InputError

if TYPE_CHECKING:
    import jax

    from noisescale.likelihood import Likelihood

_LARGEST = 1e100  # of features, whose products are summed in float64

F = TypeVar("F", bound=Callable[..., Any])


def one_blas_thread() -> AbstractContextManager[Any]:
    """Let NumPy's and SciPy's products run on one thread; other pools stay as they are."""
    limited: AbstractContextManager[Any] = _blas_pools().limit(limits=1)
    return limited


@cache
def _blas_pools() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


# What JAX says when it compiles, and when it traces.
_MIXED_UP = ("Cannot lower jaxpr", "requires arguments to have the same dtypes")


def forgets_constants(function: F) -> F:
    """Run again from scratch if JAX mixes up the precision of a model's NumPy constants.

    JAX keeps a NumPy constant that a function closes over as it first compiled it; float32 in
    training, it then does not fit into an evidence in float64, and the other way round.
    """

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (ValueError, TypeError) as error:
            if not any(words in str(error) for words in _MIXED_UP):
                raise
        import jax

        # Outside of the handler: the error's frames would keep the constants alive.
        jax.clear_caches()  # type: ignore[no-untyped-call]
        return function(*args, **kwargs)

    return cast(F, guarded)


def check_inputs(
    x: ArrayLike, what: str, dtype: type[np.floating[Any]] = np.float32
) -> NDArray[np.generic]:
    """Features as ``dtype`` (whole numbers stay as they are), all finite."""
    array = np.asarray(x)
    if array.dtype.kind in "iub":
        limits = np.iinfo(np.int32)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise InputError(
                f"{what} holds whole numbers beyond 32 bits: give them as floating-point numbers."
            )
        return array
    if array.dtype.kind != "f":
        raise InputError(f"{what} must be numbers, got dtype {array.dtype}.")
    check_scale(array, what)
    array = array.astype(dtype, copy=False)
    finite = np.isfinite(array)
    if not finite.all():
        at = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise InputError(
            f"{what} holds {array[at]} at {list(at)}: remove or fill the {(~finite).sum():,} "
            f"values that are not finite {np.dtype(dtype)} numbers."
        )
    return array


def check_scale(x: NDArray[Any], what: str) -> None:
    """Refuse finite numbers whose products do not fit into float64."""
    with np.errstate(invalid="ignore"):
        largest = float(np.abs(x).max(initial=0.0))
    if _LARGEST < largest < math.inf:
        raise InputError(
            f"{what} holds numbers as large as {largest:.3g}, whose products are too large to "
            "compute with: divide them by their standard deviation."
        )


def check_params(params: Any) -> Any:
    """``params`` if it is a pytree of finite floating-point arrays."""
    import jax
    import jax.numpy as jnp

    try:
        leaves = jax.tree.leaves(params)
    except ValueError as error:  # keys that cannot be put in order
        raise InputError(
            f"params must be a pytree, whose dictionaries have keys of one type: {error}."
        ) from None
    if not leaves:
        raise InputError("params holds no arrays: there is no model without parameters.")
    for leaf in leaves:
        try:
            array = np.asarray(leaf)
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"params must be arrays, got {type(leaf).__name__}.") from None
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise InputError(f"params must be floating-point arrays, got dtype {array.dtype}.")
        if not (np.abs(array) <= np.finfo(np.float32).max).all():
            raise InputError(
                "params holds values that are not finite float32 numbers: initialise it again."
            )
    return params


def output_shape(
    apply_fn: "Callable[[Any, jax.Array], jax.Array]", params: Any, x: NDArray[Any]
) -> tuple[int, ...]:
    """The shape of ``apply_fn(params, x)``, or one sentence if they do not fit together."""
    import jax

    try:
        hash(apply_fn)
    except TypeError:
        raise InputError(
            f"apply_fn must be hashable, so that its compiled program can be kept, but "
            f"{type(apply_fn).__name__} is not: wrap it in a function."
        ) from None
    try:
        outputs = jax.eval_shape(apply_fn, params, x)
    except Exception as error:  # the user's code may raise anything
        said = (str(error).strip().splitlines() or [""])[0]
        reason = f"{type(error).__name__}: {said[:300]}"
        raise InputError(
            f"apply_fn does not accept these params with x of shape {x.shape}: "
            f"{reason.rstrip(': .')}."
        ) from error
    if not hasattr(outputs, "shape"):
        raise InputError(
            f"apply_fn must return one array of outputs, but returns a {type(outputs).__name__}."
        )
    shape = tuple(outputs.shape)
    of_one: tuple[int, ...] = ()
    with suppress(Exception):  # a model need not take a single row
        of_one = tuple(jax.eval_shape(apply_fn, params, x[:1]).shape)
    if len(x) > 1 and shape[:1] == of_one[:1] == (len(x),):
        raise InputError(
            f"apply_fn must return a row for each row of x, but returns {len(x)} for one."
        )
    return shape


def count_examples(data: tuple[ArrayLike, ArrayLike], what: str) -> int:
    """The number of examples in the pair ``data``, the same in both its parts."""
    if isinstance(data, Mapping) or not isinstance(data, Sequence) or len(data) != 2:
        raise InputError(f"{what} must be a pair of arrays (x, y), got {type(data).__name__}.")
    if any(hasattr(part, "toarray") for part in data):
        raise InputError(f"{what} is sparse: give dense arrays, x.toarray().")
    try:
        n_inputs, n_labels = (len(part) for part in data)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(
            f"{what} must be a pair of arrays (x, y), got a pair of "
            f"{' and '.join(type(part).__name__ for part in data)}."
        ) from None
    if n_inputs != n_labels:
        raise InputError(f"{what} has {n_inputs} examples in x but {n_labels} labels in y.")
    if n_inputs == 0:
        raise InputError(f"{what} holds no examples.")
    return n_inputs


def check_data(
    apply_fn: "Callable[[Any, jax.Array], jax.Array]",
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    likelihood: "Likelihood",
    what: str,
) -> tuple[NDArray[np.generic], NDArray[np.int32], int]:
    """Features, labels and the number of classes, once all three are known to fit together."""
    count_examples(data, what)
    features = check_inputs(data[0], f"{what} x")
    shape = output_shape(apply_fn, params, features)
    n_classes = check_outputs(likelihood.name, shape, len(features))
    return features, check_labels(data[1], likelihood.name, n_classes, f"{what} labels"), n_classes


def check_outputs(
    likelihood: str, shape: tuple[int, ...], n_examples: int, model: str = "apply_fn"
) -> int:
    """The number of classes that outputs of this ``shape`` tell apart."""
    if likelihood == "bernoulli":
        allowed: tuple[tuple[int, ...], ...] = ((n_examples,), (n_examples, 1))
        if shape not in allowed:
            raise InputError(
                f"the bernoulli likelihood needs one logit an example, but {model} returns shape "
                f"{shape} for {n_examples} examples: use likelihood='categorical'."
            )
        return 2
    if len(shape) != 2 or shape[0] != n_examples or shape[1] < 2:
        raise InputError(
            f"the categorical likelihood needs a logit for each of two or more classes, but "
            f"{model} returns shape {shape} for {n_examples} examples."
        )
    return shape[1]


def check_labels(y: ArrayLike, likelihood: str, n_classes: int, what: str) -> NDArray[np.int32]:
    """Labels as int32 in ``range(n_classes)``, or one sentence with the first wrong one.

    Two classes may come as 0.0 and 1.0 and with an axis of length 1, as PyTorch's BCEWithLogitsLoss
    wants them.
    """
    labels = np.asarray(y)
    if likelihood == "bernoulli" and labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise InputError(f"{what} must be one-dimensional, got shape {labels.shape}.")
    if likelihood == "bernoulli" and labels.dtype.kind == "f":
        if not np.isin(labels, (0, 1)).all():
            first = labels[~np.isin(labels, (0, 1))][0]
            raise InputError(f"{what} must be 0 or 1 for two classes, got {first}.")
    elif labels.dtype.kind not in "iub":
        raise InputError(f"{what} must be whole numbers, got dtype {labels.dtype}.")
    wrong = (labels < 0) | (labels >= n_classes)
    if wrong.any():
        at = int(wrong.argmax())
        raise InputError(
            f"{what} must lie in 0..{n_classes - 1} for a model of {n_classes} classes, "
            f"got {labels[at]} at position {at}."
        )
    return labels.astype(np.int32)
