"""The noise scale of an optax run: a gradient transformation that passes gradients through.

    optimizer = optax.chain(watch_noise(n_train=50_000), optax.sgd(0.1))
    ...
    updates, state = optimizer.update(mean, state, params, example_gradients=gradients)
    optax.tree.get(state, "critical_batch_size")

Beside the mean gradient C it is fed the gradients g_k whose mean that is: of K single examples, or
of K equal shares of the batch (devices, micro-batches) of m examples each. With c_k = g_k/K, as in
:mod:`noisescale.noise.watch.reading`,

    |G|^2 = (|C|^2 - sum_k |c_k|^2)/(1 - 1/K)         = |C|^2 - D/(K - 1),
    tr S  = K m (sum_k |c_k|^2 - |C|^2/K)/(1 - 1/K)   = m K D/(K - 1),

are unbiased, with D the mean of |g_k - C|^2, in which float32 does not cancel. They are averaged in
the state as :mod:`noisescale.noise.watch.ratio` does, inside ``jit``, ``pmap`` and ``shard_map``.
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

from noisescale.checks import check_learning_rate, check_momentum, check_number, check_whole
from noisescale.errors import InputError
from noisescale.noise.watch.ratio import (
    Averages,
    RunningRatio,
    means_of,
    no_readings,
    weights_of,
    with_reading,
)
from noisescale.noise.watch.record import NO_NOISE, NoiseRecord, Row

__all__ = ["WatchNoiseState", "read_noise", "watch_noise"]

_DIGIT = 2**32  # arrays of 64 bits are not always to be had


class WatchNoiseState(NamedTuple):
    """Running averages, and the answer after the last measured update.

    Attributes:
        n_updates: all updates so far, measured or not: what a schedule is asked at.
        averages: those of :mod:`noisescale.noise.watch.ratio`. Measurements are skipped where a
            norm was not finite or the updates were not the mean of the example gradients.
        latest: (2,), the number and the batch size of the last measured update.
        n_train: (2,), the size of the training set in digits of base 2^32; zeros if unknown.
        circumstances: (3,), decay, learning rate and momentum; NaN where unknown. (Fields of their
            own would be mistaken for the optimiser's.)
        critical_batch_size: tr S/|G|^2 of the averages; NaN while either is not above zero.
            :func:`read_noise` gives it with its interval.
        noise_scale: the paper's g; NaN without ``n_train`` and ``learning_rate``, or if a batch
            has more than ``n_train`` examples.
    """

    n_updates: Any
    averages: Averages
    latest: Any
    n_train: Any
    circumstances: Any
    critical_batch_size: Any
    noise_scale: Any


def watch_noise(
    *,
    n_train: int | None = None,
    learning_rate: float | Callable[[Any], Any] | None = None,
    momentum: float | None = 0.0,
    decay: float | None = None,
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
        learning_rate: the optimiser's, a number or a schedule, for the noise scale. A schedule is
            asked at the number of updates that came through here before. With ``optax.MultiSteps``
            neither that number nor the batch is one call's: give no ``learning_rate`` then.
        momentum: the optimiser's; None for Adam and its kin, which have no g.
        decay: None averages over the recent half of the run so far, 0 over all updates alike;
            0.99 forgets after about a hundred updates.
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
    8
    """
    N = None if n_train is None else check_whole("n_train", n_train, at_least=1)
    m = math.nan if momentum is None else check_momentum(momentum)
    size = check_whole("group_size", group_size, at_least=1)
    if decay is not None:
        decay = check_number("decay", decay, "in [0, 1)", lambda v: 0 <= v < 1)
    keep = math.nan if decay is None else decay
    if learning_rate is not None and not callable(learning_rate):
        check_learning_rate(learning_rate)

    def init(params: Any) -> WatchNoiseState:
        count, unknown = jnp.zeros((), jnp.int32), jnp.full((), jnp.nan)
        return WatchNoiseState(
            n_updates=count,
            averages=no_readings(jnp),
            latest=jnp.zeros(2, jnp.int32),
            n_train=jnp.array(divmod(N or 0, _DIGIT), jnp.uint32),
            circumstances=jnp.array([keep, jnp.nan, m]),
            critical_batch_size=unknown,
            noise_scale=unknown,
        )

    def update(
        updates: Any,
        state: WatchNoiseState,
        params: Any = None,
        *,
        example_gradients: Any = None,
        **extra: Any,
    ) -> tuple[Any, WatchNoiseState]:
        step = state.n_updates
        state = state._replace(n_updates=step + 1)
        if example_gradients is None:
            return updates, state
        K, total, D, usable = _moments(example_gradients, updates, axis_name)
        signal, trace = total - D / (K - 1), size * K / (K - 1) * D
        signal = jnp.where(usable, signal, jnp.nan)
        averages = with_reading(state.averages, signal, trace, step, decay, jnp)
        B, rate = K * size, math.nan
        if learning_rate is not None:
            rate = learning_rate(step) if callable(learning_rate) else learning_rate
        loudness = math.nan if N is None or B > N else (N - B) / B
        s, n = means_of(averages, weights_of(averages, decay, jnp), jnp)
        kind = averages.blocks.dtype
        return updates, state._replace(
            averages=averages,
            latest=jnp.array([step, B], jnp.int32),
            circumstances=jnp.array([keep, rate, m], kind),
            critical_batch_size=jnp.where((s > 0) & (n > 0), n / s, jnp.nan),
            noise_scale=jnp.asarray(rate * loudness / (1 - m), kind),
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
    decay, rate, momentum = (float(value) for value in found.circumstances)
    step, B = (int(value) for value in found.latest)
    high, low = (int(value) for value in found.n_train)
    kept = None if math.isnan(decay) else round(decay, 6)
    record = NoiseRecord(n_train=high * _DIGIT + low or None, decay=kept)
    record.whole = RunningRatio.of(found.averages, kept)
    record.adam = math.isnan(momentum)
    if record.whole.n_skipped:
        record.note(
            f"{record.whole.n_skipped} measurements were left out: a norm was not finite, or the "
            "updates were not the mean of the example_gradients"
        )
    if record.whole.n_updates:
        if record.whole.noise == 0:
            record.note(NO_NOISE)
        estimate = record.interval()
        row = Row(
            update=step,
            n_examples=B,
            batch_size=float(B),
            gradient_sq_norm=record.whole.signal,
            trace=record.whole.noise,
            critical_batch_size=estimate.value,
            low=estimate.low,
            high=estimate.high,
            learning_rate=rate,
            momentum=momentum,
            noise_scale=record.scale(rate, B, momentum),
        )
        record.rows.append(row)
    return record


def _moments(gradients: Any, mean: Any, axis_name: str | None) -> tuple[Any, Any, Any, Any]:
    """K, |C|^2, the mean D of |g_k - C|^2, and whether C is the mean of the g_k."""
    leaves, means = jax.tree.leaves(gradients), jax.tree.leaves(mean)
    kinds = {leaf.dtype for leaf in (*leaves, *means)}
    eps = max(float(jnp.finfo(kind).eps) for kind in kinds)  # type: ignore[no-untyped-call]
    if axis_name is not None:
        K = jax.lax.psum(1, axis_name)  # type: ignore[no-untyped-call]
        own, total = _sq_norm(map(_apart, leaves, means)), _sq_norm(means)
        D = jax.lax.pmean(own, axis_name)  # type: ignore[no-untyped-call]
        return K, total, _above_rounding(D, total, eps), True
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
    centre = [_wide(leaf).mean(0) for leaf in leaves]
    total, D = _sq_norm(centre), _sq_norm(map(_apart, leaves, centre)) / K
    # Rounding, of a mean in half precision too, is small beside one of these; the gradient of
    # other examples, or of more, is not.
    off = _sq_norm(map(_apart, centre, means))
    is_mean = off <= 0.01 * D / K + (8 * eps) ** 2 * (total + D)
    return K, total, _above_rounding(D, total, eps), is_mean


def _above_rounding(D: Any, total: Any, eps: float) -> Any:
    """``D``, or 0 where gradients that are all alike would give as much."""
    return jnp.where((4 * eps) ** 2 * total < D, D, 0.0)


def _apart(one: Any, other: Any) -> Any:
    return _wide(one) - _wide(other)


def _wide(leaf: Any) -> Any:
    """In float32 at least: squares of half-precision numbers overflow."""
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def _sq_norm(leaves: Any) -> Any:
    return sum(jnp.vdot(leaf, leaf).real for leaf in map(_wide, leaves))
