"""Stochastic gradient descent with momentum, as the paper runs it.

    A <- m A + grad,    w <- w - epsilon A,
    grad of (1/B) sum over the batch of nll_i(w) + lambda/(2 N) |w|^2.

This is TensorFlow's and PyTorch's momentum (no dampening), and the L2 penalty of the paper's
summed cost C = sum_i nll_i + lambda/2 |w|^2 divided by N: ``weight_decay = prior_precision / N``.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from noisescale.arrays import forgets_constants
from noisescale.likelihood import Likelihood
from noisescale.seeds import random_stream
from noisescale.training.evaluation import ApplyFn
from noisescale.training.features import decay_factor, without_dead_features
from noisescale.training.loop import Walk, follow, set_up
from noisescale.training.result import TrainResult, Waypoint
from noisescale.training.sampling import BatchStream
from noisescale.training.settings import Rates


@forgets_constants
def train(
    apply_fn: ApplyFn,
    params: Any,
    train_data: tuple[ArrayLike, ArrayLike],
    *,
    learning_rate: float,
    batch_size: int,
    steps: int,
    momentum: float = 0.0,
    prior_precision: float = 0.0,
    likelihood: str = "categorical",
    cost_convention: str = "per_example",
    sampler: str = "without_replacement",
    seed: int = 0,
    test_data: tuple[ArrayLike, ArrayLike] | None = None,
    evaluate_at: str | Iterable[int] = "log",
    n_evaluations: int = 30,
    callback: Callable[[Waypoint], None] | None = None,
) -> TrainResult:
    """Train ``apply_fn`` from ``params`` by SGD with momentum.

    Args:
        apply_fn: any JAX function ``(params, x) -> logits``.
        params: a pytree of floating-point arrays; it is left as it is.
        train_data: ``(x, y)``, one row of ``x`` an example.
        learning_rate: epsilon > 0, in the unit that ``cost_convention`` sets.
        batch_size: B, from 1 to N.
        steps: the number of updates.
        momentum: m in [0, 1).
        prior_precision: lambda >= 0, the L2 coefficient of the paper's summed cost.
        likelihood: ``"categorical"`` or ``"bernoulli"``.
        cost_convention: ``"per_example"`` for the usual mean cost; ``"per_class"`` divides the
            whole cost by the number of classes, which is exactly a change of learning-rate unit.
        sampler: ``"without_replacement"``, ``"with_replacement"`` or ``"shuffle"``.
        seed: decides the batches. The same settings, seed and number of threads give the same
            history to the bit on one machine.
        test_data: ``(x, y)`` to evaluate on, if any.
        evaluate_at: ``"log"``, ``"final"``, or the steps after which to evaluate.
        n_evaluations: how many evaluations ``"log"`` makes at the most, besides step 0.
        callback: called with a :class:`Waypoint` after each evaluation, and at least every 1,024
            steps.

    Returns:
        The parameters and the history. A run whose cost or parameters stop being finite ends
        there with status ``"diverged"``; it does not raise.
    """
    setup = set_up(
        apply_fn,
        params,
        train_data,
        test_data,
        evaluate_at=evaluate_at,
        n_evaluations=n_evaluations,
        learning_rate=learning_rate,
        batch_size=batch_size,
        momentum=momentum,
        steps=steps,
        prior_precision=prior_precision,
        likelihood=likelihood,
        cost_convention=cost_convention,
        sampler=sampler,
        seed=seed,
    )
    settings, rates = setup.settings, setup.rates
    x, trained, restore = without_dead_features(apply_fn, setup.x, setup.params)

    batch_size = settings.batch_size
    rng = random_stream(settings.seed, "batches")
    batches = BatchStream(sampler, n_train=len(setup.y), batch_size=batch_size, rng=rng)
    x_device, y_device = jnp.asarray(x), jnp.asarray(setup.y)
    accumulator = jax.tree.map(jnp.zeros_like, trained)
    buffer = np.zeros((_chunk_length(batch_size), batch_size), np.int32)

    def advance(at_most: int) -> tuple[int, bool]:
        nonlocal trained, accumulator
        n = min(len(buffer), at_most)
        buffer[:n] = batches.take(n)
        made, trained, accumulator, finite = _stretch(
            apply_fn,
            setup.likelihood,
            trained,
            accumulator,
            x_device,
            y_device,
            buffer,
            n,
            rates,
        )
        return int(made), bool(finite)  # waits for the program, which reads the buffer until then

    def whole(step: int) -> Any:
        return restore(trained, decay_factor(step, rates))

    return follow(Walk(advance, whole), setup, callback)


def _chunk_length(batch_size: int) -> int:
    """Steps in one call of the compiled loop: long against its start, yet soon interrupted."""
    return max(1, min(1024, (1 << 17) // batch_size))


@partial(
    jax.jit,
    static_argnames=("apply_fn", "likelihood"),
    donate_argnames=("params", "accumulator"),
)
def _stretch(
    apply_fn: ApplyFn,
    likelihood: Likelihood,
    params: Any,
    accumulator: Any,
    x: jax.Array,
    y: jax.Array,
    batches: jax.Array,
    n_steps: int,
    rates: Rates,
) -> tuple[jax.Array, Any, Any, jax.Array]:
    """``n_steps`` updates in one compiled loop, fewer if the cost stops being finite.

    ``n_steps`` and the rates are run-time values: one program serves every stretch of every run
    with the same shapes.
    """

    learning_rate, momentum, decay = rates

    def cost(params: Any, batch: jax.Array) -> jax.Array:
        return jnp.mean(likelihood.nll(apply_fn(params, x[batch]), y[batch]))

    def go_on(carry: tuple[jax.Array, Any, Any, jax.Array]) -> jax.Array:
        i, _, _, finite = carry
        return (i < n_steps) & finite

    def step(
        carry: tuple[jax.Array, Any, Any, jax.Array],
    ) -> tuple[jax.Array, Any, Any, jax.Array]:
        i, params, accumulator, _ = carry
        value, gradient = jax.value_and_grad(cost)(params, batches[i])
        accumulator = jax.tree.map(
            lambda a, g, w: momentum * a + g + decay * w, accumulator, gradient, params
        )
        params = jax.tree.map(lambda w, a: w - learning_rate * a, params, accumulator)
        return i + 1, params, accumulator, jnp.isfinite(value)

    start = (jnp.int32(0), params, accumulator, jnp.bool_(True))
    return jax.lax.while_loop(go_on, step, start)
