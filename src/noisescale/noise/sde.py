"""SGD as a stochastic differential equation: section 5, and its momentum form of appendix D.

With L the cost an example, S(w) the covariance of per-example gradients and time t measured in
learning rates (a step of SGD lasts epsilon), SGD's error has covariance V(w) = (1/B - 1/N) S(w):

    dw = -grad L dt + sqrt(epsilon V(w)) dW,                      epsilon V = (g/N) S at m = 0,

and with momentum

    dw = -A dt,    epsilon dA = -(1 - m) A dt + grad L dt + sqrt(epsilon V(w)) dW.

Euler-Maruyama with a step of epsilon is SGD whose gradient error has been made Gaussian; with
``substeps`` k the step is epsilon/k, and as k grows the equation itself is integrated. The noise
has the covariance S(w) of each step's w, though S is never formed: it is
sum_i z_i (g_i - mean)/sqrt(N - 1) with independent z_i, which together with the drift is one
weighted gradient of the whole training set.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from noisescale.arrays import forgets_constants
from noisescale.checks import check_choice, check_whole
from noisescale.likelihood import Likelihood
from noisescale.training.evaluation import ApplyFn
from noisescale.training.loop import Walk, follow, set_up
from noisescale.training.result import TrainResult, Waypoint
from noisescale.training.settings import Rates, Settings

_CHUNK = 256  # steps of SGD in one call of the compiled loop


@forgets_constants
def simulate_sgd_sde(
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
    substeps: int = 1,
    seed: int = 0,
    test_data: tuple[ArrayLike, ArrayLike] | None = None,
    evaluate_at: str | Iterable[int] = "log",
    n_evaluations: int = 30,
    callback: Callable[[Waypoint], None] | None = None,
) -> TrainResult:
    """Integrate the stochastic differential equation of SGD, to lay beside :func:`train`.

    Takes what :func:`train` takes and gives back the same; a step here lasts as long as one of
    SGD and costs ``substeps`` gradients of the whole training set.

    Args:
        apply_fn, params, train_data, test_data: as for :func:`train`.
        learning_rate, batch_size, momentum, prior_precision: those of the SGD to be described.
        steps: its number of updates.
        likelihood, cost_convention: as for :func:`train`.
        sampler: ``"without_replacement"`` or ``"with_replacement"``, which sets the variance. The
            noise of shuffled batches is correlated in time, so no such equation describes it.
        substeps: integration steps for each step of SGD.
        seed: decides the noise.
        evaluate_at, n_evaluations, callback: as for :func:`train`.

    >>> import noisescale as ns
    >>> x, y = [[-1.0], [-0.5], [0.5], [1.0]], [0, 0, 1, 1]
    >>> model = ns.softmax_regression(1, 2)
    >>> sgd = {"learning_rate": 0.5, "batch_size": 2, "steps": 50}
    >>> ns.simulate_sgd_sde(model, model.init(0), (x, y), **sgd).final.train_accuracy
    1.0
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
        sampler=check_choice("sampler", sampler, ("without_replacement", "with_replacement")),
        seed=seed,
    )
    check_whole("substeps", substeps, at_least=1)
    w, spread = setup.params, _spread(setup.settings)
    x, y = jnp.asarray(setup.x), jnp.asarray(setup.y)
    accumulator = jax.tree.map(jnp.zeros_like, w)
    key = jax.random.key(setup.settings.seed)

    def advance(at_most: int) -> tuple[int, bool]:
        nonlocal w, accumulator, key
        n = min(_CHUNK, at_most)
        w, accumulator, key, finite = _stretch(
            apply_fn,
            setup.likelihood,
            w,
            accumulator,
            x,
            y,
            key,
            n,
            setup.rates,
            spread,
            substeps,
        )
        return n, bool(finite)

    return follow(Walk(advance, lambda step: w), setup, callback)


def _spread(settings: Settings) -> float:
    """The standard deviation of an example's weight: that of its share in a batch, times N."""
    N, B = settings.n_train, settings.batch_size
    if N == 1:
        return 0.0
    variance = (1 / B - 1 / N) if settings.sampler == "without_replacement" else (1 - 1 / N) / B
    return float(N * (variance / (N - 1)) ** 0.5)


@partial(
    jax.jit,
    static_argnames=("apply_fn", "likelihood", "substeps"),
    donate_argnames=("w", "accumulator"),
)
def _stretch(
    apply_fn: ApplyFn,
    likelihood: Likelihood,
    w: Any,
    accumulator: Any,
    x: jax.Array,
    y: jax.Array,
    key: jax.Array,
    n_steps: int,
    rates: Rates,
    spread: float,
    substeps: int,
) -> tuple[Any, Any, jax.Array, jax.Array]:
    """``n_steps`` of SGD's steps, each integrated in ``substeps``."""
    learning_rate, momentum, decay = rates
    N, k = len(y), substeps
    kept = 1 - (1 - momentum) / k

    def cost(w: Any, weights: jax.Array) -> jax.Array:
        return jnp.mean(weights * likelihood.nll(apply_fn(w, x), y))

    def substep(_: Any, carry: tuple[Any, Any, jax.Array]) -> tuple[Any, Any, jax.Array]:
        w, accumulator, key = carry
        key, own = jax.random.split(key)
        z = jax.random.normal(own, (N,))
        # Over k substeps drift adds up k times, noise sqrt(k) times.
        weights = 1 / k + spread / k**0.5 * (z - z.mean())
        gradient = jax.grad(cost)(w, weights)
        gradient = jax.tree.map(lambda g, leaf: g + decay / k * leaf, gradient, w)
        accumulator = jax.tree.map(lambda a, g: kept * a + g, accumulator, gradient)
        # Without momentum there is nothing to accumulate: the step is the gradient itself.
        step = jax.tree.map(lambda a, g: jnp.where(momentum > 0, a / k, g), accumulator, gradient)
        w = jax.tree.map(lambda leaf, s: leaf - learning_rate * s, w, step)
        return w, accumulator, key

    w, accumulator, key = jax.lax.fori_loop(0, n_steps * k, substep, (w, accumulator, key))
    finite = jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(w)]))
    return w, accumulator, key, finite
