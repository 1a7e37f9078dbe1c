"""Annealing run backwards, from exact draws of the posterior: the evidence from above.

The reverse of "weigh, then move" is "move, then weigh", and transitions are reversible, so each is
its own reverse. Then E[1/weight] = 1/Z, and minus the log of the mean of 1/weight is an upper bound
of ln Z as the forward chains' is a lower one (Grosse, Ghahramani & Adams 2015).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from noisescale.evidence.annealed.chains import moved, started
from noisescale.evidence.annealed.evidence import keys_of, target_of
from noisescale.evidence.annealed.pilot import pilot
from noisescale.evidence.jax_problem import jax_problem


def cooled_back(architecture, target, chains, key, betas, steps, n_leapfrog):
    """Chains through all temperatures from the last to the first."""
    for t in reversed(range(len(steps))):
        own = jax.random.fold_in(key, t)
        chains, accepted = moved(
            architecture, target, chains, own, betas[t + 1], steps[t], n_leapfrog
        )
        chains = chains._replace(
            log_weights=chains.log_weights - (betas[t + 1] - betas[t]) * chains.nll,
            acceptance=chains.acceptance.at[t].set(accepted),
        )
    return chains


def reverse_weights(problem, L, draws, *, n_temperatures, n_leapfrog, seed=0):
    """The log weights of chains back from ``draws`` (chains, p) of the posterior."""
    architecture, T, n = problem.model.architecture, n_temperatures, len(draws)
    with jax.enable_x64(True):
        target = target_of(problem, L)
        pilot_key, _, move_key = keys_of(seed)
        schedule = pilot(
            architecture, target, pilot_key, n_chains=n, n_temperatures=T, n_leapfrog=n_leapfrog
        )
        z = jnp.asarray(draws * np.sqrt(L), jnp.float32)
        betas, steps = jnp.asarray(schedule.betas), jnp.asarray(schedule.steps)
        key = jax.random.fold_in(move_key, T)
        begun = started(architecture, target, z, T)
        back = cooled_back(architecture, target, begun, key, betas, steps, n_leapfrog)
    return np.asarray(back.log_weights, float)


def upper_bound(model, w, pair, precision, *, n_chains=16, n_temperatures, n_leapfrog):
    """Of the log evidence of labels that a classifier's own draw ``w`` from the prior gave."""
    problem = jax_problem(model, w, pair, "categorical")
    L = np.full(len(problem.w), precision)
    draws = np.tile(problem.w, (n_chains, 1))
    log_weights = reverse_weights(
        problem, L, draws, n_temperatures=n_temperatures, n_leapfrog=n_leapfrog
    )
    return math.log(n_chains) - logsumexp(-log_weights)
