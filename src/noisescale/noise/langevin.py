"""Langevin dynamics as pure functions on pytrees: ``Dynamics`` are an ``init`` and a ``step``.

For a cost C(w) at temperature T both forms sample exp(-C/T) as the step d goes to zero:

    overdamped:  w <- w - d grad C + sqrt(2 T d) xi,
    momentum:    A <- m A + grad C + sqrt(2 T (1 - m)/d) xi,   w <- w - d A     (appendix D).

On a quadratic of curvature L their variances are T/(L (1 - d L/2)) and
T/(L (1 - d L/(2 (1 + m)))); beyond d L = 2 and 2 (1 + m) they diverge.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from noisescale.checks import check_momentum, check_number

Gradient = Callable[[Any], Any]
NoisyGradient = Callable[[jax.Array, Any], tuple[Any, Any]]


class State(NamedTuple):
    """A chain's position, and its accumulator (zeros in overdamped form)."""

    position: Any
    accumulator: Any


class Dynamics(NamedTuple):
    """``init(position) -> State`` and ``step(key, state) -> State``, both pure.

    >>> import jax
    >>> dynamics = overdamped(lambda w: 4 * w, step_size=0.1, temperature=0.0)
    >>> state = dynamics.init(jax.numpy.array(1.0))
    >>> round(float(dynamics.step(jax.random.key(0), state).position), 3)
    0.6
    """

    init: Callable[[Any], State]
    step: Callable[[jax.Array, State], State]


def overdamped(gradient: Gradient, *, step_size: float, temperature: float = 1.0) -> Dynamics:
    """Overdamped Langevin dynamics, which at T = 1 samples the posterior exp(-C)."""

    def exact(key: jax.Array, position: Any) -> tuple[Any, None]:
        return gradient(position), None

    return corrected_sgld(exact, step_size=step_size, temperature=temperature)


def corrected_sgld(
    noisy_gradient: NoisyGradient,
    *,
    step_size: float,
    momentum: float = 0.0,
    temperature: float = 1.0,
) -> Dynamics:
    """Langevin dynamics with minibatch gradients whose own noise is counted in.

    Args:
        noisy_gradient: ``(key, position) -> (gradient, variance)``, an unbiased estimate of grad C
            and the variance of each of its entries (None for an exact gradient).
        step_size: d.
        momentum: m.
        temperature: T.

    The noise that is added is what the temperature asks for less what the minibatch brings:
    variance 2 T (1 - m)/d minus that of the gradient, or none where the minibatch alone brings
    more. Only the diagonal is corrected.
    """
    d = check_number("step_size", step_size, "above 0", lambda v: v > 0)
    m = check_momentum(momentum)
    T = check_number("temperature", temperature, "at least 0", lambda v: v >= 0)
    wanted = 2 * T * (1 - m) / d  # of noise; at T = 0 this is plain SGD with momentum

    def init(position: Any) -> State:
        return State(position, jax.tree.map(jnp.zeros_like, position))

    def step(key: jax.Array, state: State) -> State:
        for_batch, for_noise = jax.random.split(key)
        gradient, variance = noisy_gradient(for_batch, state.position)
        if wanted > 0:
            gradient = with_noise(for_noise, gradient, variance)
        accumulator = jax.tree.map(lambda a, g: m * a + g, state.accumulator, gradient)
        position = jax.tree.map(lambda w, a: w - d * a, state.position, accumulator)
        return State(position, accumulator)

    def with_noise(key: jax.Array, gradient: Any, variance: Any) -> Any:
        leaves, tree = jax.tree.flatten(gradient)
        brought = [0.0] * len(leaves) if variance is None else jax.tree.leaves(variance)
        keys = jax.random.split(key, len(leaves))
        return jax.tree.unflatten(
            tree,
            [
                leaf
                + jnp.sqrt(jnp.maximum(wanted - v, 0.0))
                * jax.random.normal(k, leaf.shape, leaf.dtype)
                for k, leaf, v in zip(keys, leaves, brought, strict=True)
            ],
        )

    return Dynamics(init, step)


class Chains(NamedTuple):
    """Draws (chains, draws, ...) of what was collected, and each chain's last state."""

    draws: Any
    last: State


def run_chains(
    dynamics: Dynamics,
    positions: Any,
    *,
    key: jax.Array,
    burn_in: int,
    n_samples: int,
    thin: int = 1,
    collect: Callable[[Any], Any] = lambda position: position,
) -> Chains:
    """Chains side by side from stacked ``positions`` (chains, ...), in one compiled program."""

    def stretch(state: State, keys: jax.Array) -> State:
        return jax.lax.scan(lambda s, k: (dynamics.step(k, s), None), state, keys)[0]

    def one(key: jax.Array, position: Any) -> tuple[Any, State]:
        warm_key, key = jax.random.split(key)
        state = stretch(dynamics.init(position), jax.random.split(warm_key, burn_in))

        def draw(state: State, key: jax.Array) -> tuple[State, Any]:
            state = stretch(state, jax.random.split(key, thin))
            return state, collect(state.position)

        last, draws = jax.lax.scan(draw, state, jax.random.split(key, n_samples))
        return draws, last

    n_chains = len(jax.tree.leaves(positions)[0])
    draws, last = jax.jit(jax.vmap(one))(jax.random.split(key, n_chains), positions)
    return Chains(draws, last)
