"""How far annealing may be from the truth: bounds from both sides, on simulated data.

Parameters drawn from the prior and labels drawn from the likelihood at them are an exact draw of
the posterior with its data. Chains run back from it give E[1/weight] = 1/Z, and so an upper bound;
forward chains give the lower bound (Grosse, Ghahramani & Adams 2015).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from noisescale.arrays import check_inputs, check_params, forgets_constants, output_shape
from noisescale.errors import InputError
from noisescale.evidence.annealed.chains import cooled_back, from_prior, heated, started
from noisescale.evidence.annealed.evidence import check_size, fixed_prior, keys_of, target_of
from noisescale.evidence.annealed.pilot import pilot
from noisescale.evidence.annealed.result import AnnealedGap
from noisescale.evidence.curvature.model import Model
from noisescale.evidence.jax_leaves import ApplyFn
from noisescale.evidence.jax_problem import LikelihoodLike, jax_problem
from noisescale.likelihood import Likelihood, resolve_likelihood
from noisescale.seeds import random_stream


@forgets_constants
def annealed_gap(
    apply_fn: ApplyFn,
    params: Any,
    x: ArrayLike,
    *,
    prior_precision: Any,
    likelihood: LikelihoodLike = "categorical",
    n_chains: int = 16,
    n_temperatures: int = 1_000,
    n_leapfrog: int = 10,
    seed: int = 0,
) -> AnnealedGap:
    """Bounds from both sides on the evidence of labels simulated from the model at inputs ``x``.

    Arguments as in :func:`annealed_evidence`. What it says of real labels is by analogy: a
    posterior that is harder to reach has a wider gap.

    >>> import numpy as np, noisescale as ns
    >>> x = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = ns.logistic_regression(2)
    >>> found = annealed_gap(model, model.init(0), x, prior_precision=1.0,
    ...                      likelihood="bernoulli", n_temperatures=100)
    >>> abs(found.gap) < 0.5
    True
    """
    size = check_size(n_chains, n_temperatures, n_leapfrog, seed)
    chosen = resolve_likelihood(likelihood)
    inputs = check_inputs(x, "x")
    if inputs.ndim == 0 or not len(inputs):
        raise InputError(f"x must have one row an example, got shape {inputs.shape}.")
    rng = random_stream(seed, "simulated labels")
    with jax.enable_x64(True):
        shape = output_shape(apply_fn, check_params(params), inputs)
    blank = np.zeros((len(inputs), *(shape[1:] if chosen.name == "gaussian" else ())))
    dtype = np.float64 if chosen.name == "gaussian" else np.int32
    empty = jax_problem(apply_fn, params, (inputs, blank.astype(dtype)), chosen)
    L = fixed_prior(prior_precision, empty)
    z = rng.normal(size=len(L)).astype(np.float32)
    with jax.enable_x64(True):
        w = z.astype(np.float64) / np.sqrt(L)
        outputs = np.asarray(empty.model.architecture.outputs(w, jnp.asarray(inputs)))
    y = _simulate(chosen, outputs, rng).reshape(blank.shape)
    problem = jax_problem(apply_fn, params, (inputs, y.astype(dtype)), chosen)
    model: Model = problem.model
    T = size.n_temperatures
    with jax.enable_x64(True):
        target = target_of(problem, L)
        pilot_key, start_key, move_key = keys_of(size.seed)
        schedule = pilot(
            model.architecture,
            target,
            pilot_key,
            n_chains=size.n_chains,
            n_temperatures=T,
            n_leapfrog=size.n_leapfrog,
        )
        betas, steps = jnp.asarray(schedule.betas), jnp.asarray(schedule.steps)
        forward = heated(
            model.architecture,
            target,
            from_prior(model.architecture, target, start_key, size.n_chains, T),
            move_key,
            betas,
            steps,
            jnp.asarray(0),
            jnp.asarray(T),
            size.n_leapfrog,
        )
        backward = cooled_back(
            model.architecture,
            target,
            started(model.architecture, target, jnp.tile(z, (size.n_chains, 1)), T),
            jax.random.fold_in(move_key, T),
            betas,
            steps,
            size.n_leapfrog,
        )
    return AnnealedGap(
        np.asarray(forward.log_weights, np.float64),
        np.asarray(backward.log_weights, np.float64),
        T,
    )


def _simulate(likelihood: Likelihood, outputs: Any, rng: np.random.Generator) -> Any:
    """Targets drawn from the likelihood at these outputs (n, C)."""
    if likelihood.name == "categorical":
        return (outputs + rng.gumbel(size=outputs.shape)).argmax(axis=1)
    if likelihood.name == "bernoulli":
        return rng.logistic(size=outputs.shape) < outputs
    if likelihood.noise_precision is not None:
        return outputs + rng.normal(size=outputs.shape) / np.sqrt(likelihood.noise_precision)
    raise InputError(
        f"targets cannot be simulated from the likelihood {likelihood.name!r}: use 'categorical', "
        "'bernoulli' or 'gaussian' with a noise precision."
    )
