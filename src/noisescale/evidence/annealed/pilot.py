"""Temperatures and step sizes, found by a pilot run whose chains are thrown away.

A schedule that looked at the chains it weighs would bias their weights. The pilot walks up a coarse
ladder of inverse temperatures and learns, at each rung, the step size that is accepted four times
in five and how much the nll varies. With transitions that mix at once the variance of a log weight
is sum (b_t+1 - b_t)^2 Var_b(nll), least for steps proportional to 1/sd_b(nll); because transitions
do not mix at once, some of the temperatures are spread evenly in ln b instead.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from noisescale.errors import InputError
from noisescale.evidence.annealed.chains import Array, Chains, Target, from_prior, moved
from noisescale.evidence.curvature.model import Architecture

_RUNGS = 16
_MOVES = 12  # at each rung
_ACCEPTED = 0.8  # the share of proposals that step sizes aim at
_GAIN = 1.0  # of the adaptation, in ln step for a share of 1
_LONGEST = math.pi / 4  # a step beyond an eighth of the prior's period only turns back
_SHORTEST = 1e-6
_BY_LENGTH = 0.7  # the share of temperatures that go by sd_b(nll)


class Schedule(NamedTuple):
    """Inverse temperatures (T + 1,) from 0 to 1, and the step size after each (T,)."""

    betas: Array
    steps: Array


def pilot(
    architecture: Architecture,
    target: Target,
    key: jax.Array,
    *,
    n_chains: int,
    n_temperatures: int,
    n_leapfrog: int,
) -> Schedule:
    """Walk up the ladder once, and freeze what was learnt."""
    start_key, move_key = jax.random.split(key)
    chains = check_finite(from_prior(architecture, target, start_key, n_chains, n_temperatures))
    rungs = _ladder(chains)
    log_step, log_steps, means, sds = math.log(0.1), [], [], []
    means.append(float(np.mean(chains.nll)))
    sds.append(float(np.std(chains.nll)))
    for k, beta in enumerate(rungs):
        tried, seen = [], []
        for move in range(_MOVES):
            own = jax.random.fold_in(move_key, k * _MOVES + move)
            chains, accepted = moved(
                architecture,
                target,
                chains,
                own,
                jnp.asarray(beta),
                jnp.asarray(math.exp(log_step)),
                n_leapfrog,
            )
            log_step += _GAIN * (float(accepted) - _ACCEPTED)
            log_step = min(max(log_step, math.log(_SHORTEST)), math.log(_LONGEST))
            tried.append(log_step)
            seen.append(np.asarray(chains.nll))
        log_steps.append(np.mean(tried[_MOVES // 2 :]))
        means.append(float(np.mean(seen[_MOVES // 2 :])))
        sds.append(float(np.std(seen[_MOVES // 2 :])))
    known = np.concatenate([[0.0], rungs])
    betas = _spread(known, _deviations(known, np.array(means), np.array(sds)), n_temperatures)
    log_b = np.log(np.maximum(betas[1:], rungs[0]))
    return Schedule(betas, np.exp(np.interp(log_b, np.log(rungs), np.array(log_steps))))


def check_finite(chains: Chains) -> Chains:
    """The chains, if the likelihood can be computed where they are."""
    if not np.isfinite(np.asarray(chains.nll)).all():
        raise InputError(
            "the likelihood is not finite at draws from the prior: raise prior_precision, or scale "
            "the inputs."
        )
    return chains


def _ladder(chains: Chains) -> Array:
    """Rungs in proportion, from where the likelihood begins to matter up to 1."""
    spread = float(np.std(chains.nll))
    first = min(0.5, 0.3 / spread) if spread > 0 else 0.5
    return np.asarray(np.geomspace(first, 1.0, _RUNGS))


def _deviations(betas: Array, means: Array, sds: Array) -> Array:
    """sd_b(nll) at each rung: over chains, or by -d mean/d b, which is its square, if larger."""
    falls = np.maximum(-np.diff(means) / np.diff(betas), 0.0)  # between rungs
    slopes = np.sqrt(np.maximum(np.append(falls, falls[-1]), np.insert(falls, 0, falls[0])))
    return np.asarray(np.maximum(np.maximum(sds, slopes), 1e-12))


def _spread(known: Array, deviations: Array, n: int) -> Array:
    """``n`` steps from 0 to 1: most by the length of the path, some by ln b."""
    fine = np.concatenate([np.linspace(0, known[1], 64)[:-1], np.geomspace(known[1], 1, 2_000)])
    sd = np.interp(fine, known, deviations)
    length = np.concatenate([[0.0], np.cumsum(np.diff(fine) * (sd[1:] + sd[:-1]) / 2)])
    logs = np.log(np.maximum(fine, known[1]) / known[1])
    place = _BY_LENGTH * length / length[-1] + (1 - _BY_LENGTH) * logs / logs[-1]
    betas = np.interp(np.linspace(0, 1, n + 1), place, fine)
    betas[0], betas[-1] = 0.0, 1.0
    return np.asarray(betas)
