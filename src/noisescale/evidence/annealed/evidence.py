"""The public face of annealed sampling: what users may ask for, checked and shown."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from noisescale.arrays import forgets_constants
from noisescale.checks import check_number, check_whole, shown
from noisescale.errors import InputError
from noisescale.evidence.annealed.chains import Array, Chains, Target, from_prior, heated
from noisescale.evidence.annealed.pilot import Schedule, check_finite, pilot
from noisescale.evidence.annealed.result import AnnealedEvidence
from noisescale.evidence.jax_leaves import ApplyFn
from noisescale.evidence.jax_problem import JaxProblem, LikelihoodLike, jax_problem
from noisescale.evidence.map import with_noise_of_the_best_fit
from noisescale.evidence.null import log_null_of, note_on_imbalance, null_in_words
from noisescale.evidence.prior import describe_prior, prior_vector
from noisescale.evidence.select import Select
from noisescale.jobs.progress import Progress, chosen_progress
from noisescale.seeds import random_stream

_PARTS = 40  # in which a run is made, each told
_RANGE = (1e-30, 1e30)  # of prior precisions


class Size(NamedTuple):
    """How much is sampled."""

    n_chains: int
    n_temperatures: int
    n_leapfrog: int
    seed: int


@forgets_constants
def annealed_evidence(
    apply_fn: ApplyFn,
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    *,
    prior_precision: Any,
    likelihood: LikelihoodLike = "categorical",
    n_chains: int = 16,
    n_temperatures: int = 1_000,
    n_leapfrog: int = 10,
    select: Select | None = None,
    null: str = "uniform",
    log_null: float | None = None,
    seed: int = 0,
    progress: bool | Progress = False,
) -> AnnealedEvidence:
    """The evidence of a model under a fixed prior, by annealed importance sampling.

    Args:
        apply_fn: any JAX function ``(params, x) -> outputs``.
        params: parameters of the right shapes; their values count only where ``select`` leaves
            them fixed, because chains start from the prior.
        data: the training pair ``(x, y)``.
        prior_precision, likelihood, select, null, log_null: as in
            :func:`noisescale.log_evidence`; the prior must be given, not chosen.
        n_chains: run at once; the estimate is the mean of their weights.
        n_temperatures: from prior to posterior. The bound rises with them; with the number of
            chains it hardly does.
        n_leapfrog: gradients for each chain and temperature. A pilot run that is thrown away takes
            about 200 temperatures more.
        seed: decides everything random.
        progress: True to say how far it is; or a :class:`noisescale.Progress` of your own.

    >>> import numpy as np, noisescale as ns
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(30, 2)); y = (x[:, 0] > 0).astype(int)
    >>> model = ns.logistic_regression(2)
    >>> found = annealed_evidence(model, model.init(0), (x, y), prior_precision=1.0,
    ...                           likelihood="bernoulli", n_temperatures=100)
    >>> found.E < -5
    True
    """
    size = check_size(n_chains, n_temperatures, n_leapfrog, seed)
    problem = with_noise_of_the_best_fit(jax_problem(apply_fn, params, data, likelihood, select))
    L = fixed_prior(prior_precision, problem)
    null_model, null_note = "the given null model", None
    if log_null is None:
        log_null, null_model = log_null_of(problem, L, null), null_in_words(problem, null)
        null_note = note_on_imbalance(problem, null)
    else:
        log_null = check_number("log_null", log_null, "", lambda v: True)
    with chosen_progress(progress) as shown:
        schedule, chains = _run(problem, L, size, shown)
    return AnnealedEvidence(
        log_weights=np.asarray(chains.log_weights, np.float64),
        log_null=log_null,
        null_model=null_model,
        null_note=null_note,
        betas=schedule.betas,
        step_sizes=schedule.steps,
        acceptance=np.asarray(chains.acceptance, np.float64),
        n_leapfrog=size.n_leapfrog,
        n_train=problem.n_train,
        n_params=len(L),
        prior_precision=describe_prior(L, problem.layers),
        seed=size.seed,
    )


def check_size(n_chains: int, n_temperatures: int, n_leapfrog: int, seed: int) -> Size:
    """What was asked for, as whole numbers that are large enough."""
    return Size(
        check_whole("n_chains", n_chains, at_least=2),
        check_whole("n_temperatures", n_temperatures, at_least=2),
        check_whole("n_leapfrog", n_leapfrog, at_least=1),
        check_whole("seed", seed, at_least=0),
    )


def target_of(problem: JaxProblem, L: Array) -> Target:
    """The data and the prior as chains see them."""
    x, y = problem.model.block(slice(None), "float32")
    return Target(jnp.asarray(x), jnp.asarray(y), jnp.asarray(1 / np.sqrt(L), jnp.float32))


def keys_of(seed: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """For the pilot, for the draws from the prior, and for the transitions."""
    pilot_key, start_key, move_key = jax.random.split(
        jax.random.key(int(random_stream(seed, "annealing").integers(2**31))), 3
    )
    return pilot_key, start_key, move_key


def fixed_prior(prior_precision: Any, problem: JaxProblem) -> Array:
    """One precision for each parameter, none of them chosen by the data."""
    if isinstance(prior_precision, str):
        raise InputError(
            "prior_precision must be given for annealed sampling, got "
            f"{shown(prior_precision)}: choose it first, say with noisescale.log_evidence."
        )
    L = prior_vector(prior_precision, problem)
    low, high = _RANGE
    if L.min() < low or L.max() > high:
        raise InputError(
            f"prior_precision must lie between {low:g} and {high:g} for chains in float32, got "
            f"{L.min() if L.min() < low else L.max():g}: rescale the parameters."
        )
    return L


def _run(problem: JaxProblem, L: Array, size: Size, progress: Progress) -> tuple[Schedule, Chains]:
    """Pilot, then all temperatures in parts."""
    architecture, T = problem.model.architecture, size.n_temperatures
    with jax.enable_x64(True):
        target = target_of(problem, L)
        pilot_key, start_key, move_key = keys_of(size.seed)
        progress.line("annealing: a pilot run for temperatures and step sizes")
        schedule = pilot(
            architecture,
            target,
            pilot_key,
            n_chains=size.n_chains,
            n_temperatures=T,
            n_leapfrog=size.n_leapfrog,
        )
        chains = check_finite(from_prior(architecture, target, start_key, size.n_chains, T))
        done = 0
        betas, steps = jnp.asarray(schedule.betas), jnp.asarray(schedule.steps)
        while done < T:
            end = min(T, done + max(1, T // _PARTS))
            chains = heated(
                architecture,
                target,
                chains,
                move_key,
                betas,
                steps,
                jnp.asarray(done),
                jnp.asarray(end),
                size.n_leapfrog,
            )
            done = end
            accepted = float(np.nanmean(chains.acceptance))
            progress.line(
                f"annealing: temperature {done} of {T}, inverse {schedule.betas[done]:.3g}, "
                f"{accepted:.0%} accepted, mean nll {float(chains.nll.mean()):.5g}"
            )
    return schedule, chains
