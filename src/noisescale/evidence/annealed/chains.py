"""Many Markov chains at once, from the prior to the posterior, as one compiled program.

Parameters are whitened, z = sqrt(prior precision) w, so that the prior is a standard normal. The
target at inverse temperature b has the energy b nll(z) + |z|^2/2. A transition is Hamiltonian Monte
Carlo whose leapfrog solves the prior's part exactly,

    p <- p - (e/2) b grad nll,    (z, p) <- rotated by the angle e,    p <- p - (e/2) b grad nll,

so that the prior alone rejects nothing, however many parameters there are (Beskos et al. 2011).
States are float32; energies and log weights are summed in float64.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from noisescale.evidence.curvature.model import Architecture

Array = NDArray[np.float64]

_JITTER = 0.3  # the shortest step as a share of the longest


class Target(NamedTuple):
    """The data and the prior's standard deviations (p,), in the precision of the states."""

    x: jax.Array
    y: jax.Array
    scale: jax.Array


class Chains(NamedTuple):
    """Where every chain is.

    Attributes:
        z: (chains, p), whitened.
        nll, slope: the summed nll there (chains,), float64, and its gradient in z (chains, p).
        log_weights: (chains,), float64.
        acceptance: (temperatures,), the mean acceptance probability at each, NaN if not visited.
    """

    z: jax.Array
    nll: jax.Array
    slope: jax.Array
    log_weights: jax.Array
    acceptance: jax.Array


@partial(jax.jit, static_argnames=("architecture", "n_chains", "n_temperatures"))
def from_prior(
    architecture: Architecture, target: Target, key: jax.Array, n_chains: int, n_temperatures: int
) -> Chains:
    """Chains that start from draws of the prior."""
    z = jax.random.normal(key, (n_chains, target.scale.shape[0]), jnp.float32)
    begun: Chains = started(architecture, target, z, n_temperatures)
    return begun


@partial(jax.jit, static_argnames=("architecture", "n"))
def started(architecture: Architecture, target: Target, z: jax.Array, n: int) -> Chains:
    """Chains at ``z``, with weights of one, for ``n`` temperatures."""
    nll, slope = _energies(architecture, target, z)
    return Chains(z, nll, slope, jnp.zeros(len(z)), jnp.full(n, jnp.nan))


@partial(jax.jit, static_argnames=("architecture", "n_leapfrog"))
def moved(
    architecture: Architecture,
    target: Target,
    chains: Chains,
    key: jax.Array,
    beta: jax.Array,
    step: jax.Array,
    n_leapfrog: int,
) -> tuple[Chains, jax.Array]:
    """One transition of all chains at ``beta``, and the mean acceptance probability."""
    return _moved(architecture, target, chains, key, beta, step, n_leapfrog)


@partial(jax.jit, static_argnames=("architecture", "n_leapfrog"))
def heated(
    architecture: Architecture,
    target: Target,
    chains: Chains,
    key: jax.Array,
    betas: jax.Array,
    steps: jax.Array,
    first: jax.Array,
    last: jax.Array,
    n_leapfrog: int,
) -> Chains:
    """Forwards through the temperatures first..last-1: weigh, then move.

    ``betas`` (T + 1,) begin with 0 and end with 1; temperature t goes from betas[t] to betas[t+1]
    and moves with step size ``steps[t]``. The chains' randomness depends on ``key`` and t alone, so
    that a run in parts is the run as a whole.
    """

    def at(t: jax.Array, chains: Chains) -> Chains:
        weights = chains.log_weights - (betas[t + 1] - betas[t]) * chains.nll
        chains = chains._replace(log_weights=weights)
        own = jax.random.fold_in(key, t)
        chains, accepted = _moved(
            architecture, target, chains, own, betas[t + 1], steps[t], n_leapfrog
        )
        return chains._replace(acceptance=chains.acceptance.at[t].set(accepted))

    ended: Chains = jax.lax.fori_loop(first, last, at, chains)
    return ended


def _energies(
    architecture: Architecture, target: Target, z: jax.Array
) -> tuple[jax.Array, jax.Array]:
    def nll(z: jax.Array) -> jax.Array:
        each = architecture.nll_each(z * target.scale, target.x, target.y)
        return jnp.sum(each.astype(jnp.float64))

    return jax.vmap(jax.value_and_grad(nll))(z)


def _moved(
    architecture: Architecture,
    target: Target,
    chains: Chains,
    key: jax.Array,
    beta: jax.Array,
    step: jax.Array,
    n_leapfrog: int,
) -> tuple[Chains, jax.Array]:
    momentum_key, jitter_key, accept_key = jax.random.split(key, 3)
    z, nll, slope = chains.z, chains.nll, chains.slope
    p = jax.random.normal(momentum_key, z.shape, z.dtype)
    before = beta * nll + _half_square(z) + _half_square(p)
    # Each chain's own length: half a period takes z to -z, where the nll may be what it was.
    lengths = step * jax.random.uniform(jitter_key, (len(z), 1), minval=_JITTER, maxval=1.0)
    kick = (beta * lengths).astype(z.dtype)
    cos, sin = jnp.cos(lengths).astype(z.dtype), jnp.sin(lengths).astype(z.dtype)

    def leap(_: int, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        z, p, _nll, slope = state
        p = p - 0.5 * kick * slope
        z, p = cos * z + sin * p, cos * p - sin * z
        nll, slope = _energies(architecture, target, z)
        return z, p - 0.5 * kick * slope, nll, slope

    ended = jax.lax.fori_loop(0, n_leapfrog, leap, (z, p, nll, slope))
    after = beta * ended[2] + _half_square(ended[0]) + _half_square(ended[1])
    # A step so long that it overflows is refused like any other bad one.
    log_ratio = jnp.where(jnp.isnan(after), -jnp.inf, before - after)
    probability = jnp.exp(jnp.minimum(log_ratio, 0.0))  # (chains,)
    taken = jax.random.uniform(accept_key, probability.shape, probability.dtype) < probability
    chains = chains._replace(
        z=jnp.where(taken[:, None], ended[0], z),
        nll=jnp.where(taken, ended[2], nll),
        slope=jnp.where(taken[:, None], ended[3], slope),
    )
    return chains, probability.mean()


def _half_square(v: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum(v.astype(jnp.float64) ** 2, axis=1)
