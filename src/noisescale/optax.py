"""The noise scale of an optax run: a gradient transformation that passes gradients through.

    optimizer = optax.chain(watch_noise(n_train=50_000), optax.sgd(0.1))
    ...
    updates, state = optimizer.update(mean, state, params, example_gradients=gradients)
    optax.tree.get(state, "critical_batch_size")

Beside the mean gradient C it is fed the gradients g_k whose mean that is: of K single examples, or
of K equal shares of the batch (devices, micro-batches) of m examples each. With c_k = g_k/K, as in
:mod:`noisescale.noise.watch.reading`,

    |G|^2 = (|C|^2 - sum_k |c_k|^2)/(1 - 1/K),
    tr S  = K m (sum_k |c_k|^2 - |C|^2/K)/(1 - 1/K),

are unbiased. They are averaged in the state as :mod:`noisescale.noise.watch.ratio` does, inside
``jit``, ``pmap`` and ``shard_map``.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

try:
    import optax
except ImportError as error:
    raise ImportError(
        "noisescale.optax needs optax: pip install 'noisescale[optax]'.", name="optax"
    ) from error

import jax
import jax.numpy as jnp
import numpy as np

from noisescale.checks import check_learning_rate, check_momentum, check_number, check_whole
from noisescale.errors import InputError
from noisescale.noise.watch.ratio import LARGEST, RunningRatio
from noisescale.noise.watch.record import NoiseRecord, Row

__all__ = ["WatchNoiseState", "read_noise", "watch_noise"]

_AVERAGES = ("weight", "weight_sq", "signal", "noise", "signal_sq", "noise_sq", "product")


class WatchNoiseState(NamedTuple):
    """Running averages, and the answer after the last measured update.

    Attributes:
        n_measured, n_skipped: updates taken in, and left out because a norm was not finite.
        averages: (7,), those of :class:`noisescale.noise.watch.ratio.RunningRatio`.
        circumstances: (5,), decay, batch size, learning rate, momentum and size of the training
            set; NaN where unknown. (Fields of their own would be mistaken for the optimiser's.)
        critical_batch_size: tr S/|G|^2 of the averages; NaN while |G|^2 is not above zero.
            :func:`read_noise` gives it with its interval.
        noise_scale: the paper's g; NaN without ``n_train`` and ``learning_rate``.
    """

    n_measured: Any
    n_skipped: Any
    averages: Any
    circumstances: Any
    critical_batch_size: Any
    noise_scale: Any


def watch_noise(
    *,
    n_train: int | None = None,
    learning_rate: float | Callable[[Any], Any] | None = None,
    momentum: float | None = 0.0,
    decay: float = 0.99,
    group_size: int = 1,
    axis_name: str | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Measure the critical batch size and the noise scale; gradients go through as they are.

    Put it first in an ``optax.chain``, before anything clips. Its ``update`` takes one argument
    more, by keyword: ``example_gradients``, the gradients that ``updates`` is the mean of, a tree
    like ``updates`` with a leading axis. With ``axis_name`` it is this device's own mean gradient,
    without such an axis, and ``updates`` the mean over devices. An update without it is not
    measured: measuring every tenth costs a tenth.

    Args:
        n_train: the size of the training set, for the noise scale.
        learning_rate: the optimiser's, a number or a schedule, for the noise scale.
        momentum: the optimiser's; None for Adam and its kin, which have no g.
        decay: 0 averages over all updates alike; 0.99 forgets after about a hundred.
        group_size: examples that each of the ``example_gradients`` is the mean over.
        axis_name: of the devices, inside ``pmap`` or ``shard_map``.

    >>> import jax, jax.numpy as jnp, optax
    >>> from noisescale.optax import read_noise, watch_noise
    >>> x = jax.random.normal(jax.random.key(0), (512, 4))
    >>> y = x.sum(1) + jax.random.normal(jax.random.key(1), (512,))
    >>> gradient = jax.grad(lambda w, x, y: (x @ w - y) ** 2)
    >>> optimizer = optax.chain(watch_noise(n_train=512, learning_rate=0.01), optax.sgd(0.01))
    >>> w = jnp.zeros(4)
    >>> state = optimizer.init(w)
    >>> for k in range(0, 512, 32):
    ...     each = jax.vmap(gradient, (None, 0, 0))(w, x[k : k + 32], y[k : k + 32])
    ...     updates, state = optimizer.update(each.mean(0), state, w, example_gradients=each)
    ...     w = optax.apply_updates(w, updates)
    >>> float(optax.tree.get(state, "noise_scale"))  # epsilon (N/B - 1) = 0.01 (512/32 - 1)
    0.15000000596046448
    >>> round(read_noise(state).critical_batch_size)
    7
    """
    N = math.nan if n_train is None else check_whole("n_train", n_train, at_least=1)
    m = math.nan if momentum is None else check_momentum(momentum)
    size = check_whole("group_size", group_size, at_least=1)
    keep = check_number("decay", decay, "in [0, 1)", lambda v: 0 <= v < 1)
    if learning_rate is not None and not callable(learning_rate):
        check_learning_rate(learning_rate)

    def init(params: Any) -> WatchNoiseState:
        count, unknown = jnp.zeros((), jnp.int32), jnp.full((), jnp.nan)
        around = jnp.array([keep, jnp.nan, jnp.nan, m, N])
        return WatchNoiseState(count, count, jnp.zeros(7), around, unknown, unknown)

    def update(
        updates: Any,
        state: WatchNoiseState,
        params: Any = None,
        *,
        example_gradients: Any = None,
        **extra: Any,
    ) -> tuple[Any, WatchNoiseState]:
        if example_gradients is None:
            return updates, state
        K, squares = _groups(example_gradients, updates, axis_name)
        total = _sq_norm(updates)
        signal = (total - squares / K) / (1 - 1 / K)
        trace = K * size * (squares / K - total / K) / (1 - 1 / K)
        taken = _take(state, signal, trace)
        B, rate = K * size, math.nan
        if learning_rate is not None:
            step = state.n_measured + state.n_skipped
            rate = learning_rate(step) if callable(learning_rate) else learning_rate
        _, _, s, n, *_ = taken.averages
        kind = state.averages.dtype
        return updates, taken._replace(
            circumstances=jnp.array([keep, B, rate, m, N], kind),
            critical_batch_size=jnp.where(s > 0, n / s, jnp.nan),
            noise_scale=jnp.asarray(rate * (N / B - 1) / (1 - m), kind),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def read_noise(state: Any) -> NoiseRecord:
    """What an optimiser's state has measured, with its interval, for printing and for advice.

    Args:
        state: of :func:`watch_noise`, or of a chain that holds it.
    """
    found = optax.tree.get(state, "WatchNoiseState")
    if found is None:
        raise InputError("this state holds no watch_noise(): put it into the optax.chain.")
    decay, B, rate, momentum, n_train = (float(value) for value in found.circumstances)
    record = NoiseRecord(
        n_train=None if math.isnan(n_train) else round(n_train), decay=round(decay, 6)
    )
    record.whole = RunningRatio(
        decay=record.decay,
        n_updates=int(found.n_measured),
        n_skipped=int(found.n_skipped),
        **dict(zip(_AVERAGES, (float(value) for value in found.averages), strict=True)),
    )
    if record.whole.n_updates:
        estimate = record.interval()
        row = Row(
            update=record.whole.n_updates + record.whole.n_skipped - 1,
            n_examples=round(B),
            batch_size=B,
            gradient_sq_norm=record.whole.signal,
            trace=record.whole.noise,
            critical_batch_size=estimate.value,
            low=estimate.low,
            high=estimate.high,
            learning_rate=rate,
            momentum=momentum,
            noise_scale=float(found.noise_scale),
        )
        record.rows.append(row)
    return record


def _groups(gradients: Any, mean: Any, axis_name: str | None) -> tuple[Any, Any]:
    """How many there are, and the mean of their squared norms."""
    if axis_name is not None:
        K = jax.lax.psum(1, axis_name)  # type: ignore[no-untyped-call]
        mean_sq = jax.lax.pmean(_sq_norm(gradients), axis_name)  # type: ignore[no-untyped-call]
        return K, mean_sq
    leaves, means = jax.tree.leaves(gradients), jax.tree.leaves(mean)
    lengths = {leaf.shape[:1] for leaf in leaves}
    alike = [leaf.shape[1:] for leaf in leaves] == [leaf.shape for leaf in means]
    if len(lengths) != 1 or not alike:
        shown = [leaf.shape for leaf in leaves][:4]
        raise InputError(
            "example_gradients must be a tree like the updates with a leading axis, the same in "
            f"every leaf, got shapes {shown} for {[leaf.shape for leaf in means][:4]}."
        )
    ((K,),) = lengths
    if K < 2:
        raise InputError(f"example_gradients must be of 2 examples or more, got {K}.")
    return K, _sq_norm(gradients) / K


def _sq_norm(tree: Any) -> Any:
    """In float32 at least: squares of half-precision numbers overflow."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    wide = (leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in leaves)
    return sum(jnp.vdot(leaf, leaf).real for leaf in wide)


def _take(state: WatchNoiseState, signal: Any, noise: Any) -> WatchNoiseState:
    """As :meth:`RunningRatio.take`."""
    kind = state.averages.dtype
    largest = min(LARGEST, math.sqrt(float(np.finfo(kind).max)) / 16)
    finite = (jnp.abs(signal) <= largest) & (jnp.abs(noise) <= largest)  # NaN is not
    decay = state.circumstances[0]
    keep = jnp.where(decay > 0, decay, 1.0)
    weight, weight_sq, s, n, s_sq, n_sq, product = state.averages
    weight, weight_sq = keep * weight + 1, keep**2 * weight_sq + 1
    by_s, by_n = signal - s, noise - n
    s, n = s + by_s / weight, n + by_n / weight
    s_sq = keep * s_sq + by_s * (signal - s)
    n_sq = keep * n_sq + by_n * (noise - n)
    product = keep * product + by_s * (noise - n)
    averages = jnp.array([weight, weight_sq, s, n, s_sq, n_sq, product], kind)
    return state._replace(
        n_measured=state.n_measured + finite,
        n_skipped=state.n_skipped + ~finite,
        averages=jnp.where(finite, averages, state.averages),
    )
