"""What a model's outputs say about a label: negative log-likelihood and accuracy.

A likelihood is chosen by name, everywhere in noisescale. ``apply_fn(params, x)`` returns logits;
the functions here turn them into nats per example.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp

from noisescale.checks import check_choice, check_number


@dataclass(frozen=True)
class Likelihood:
    """A named likelihood of targets given a model's outputs.

    Attributes:
        name: what users call it.
        nll: ``(outputs, targets) -> nats``, one number an example.
        correct: ``(outputs, labels) -> bool``, whether the likeliest class is the label; None for
            a likelihood without classes.
        noise_precision: of the Gaussian likelihood; None for any other.
    """

    name: str
    nll: Callable[[jax.Array, jax.Array], jax.Array]
    correct: Callable[[jax.Array, jax.Array], jax.Array] | None = None
    noise_precision: float | None = None


def _categorical_nll(logits: jax.Array, labels: jax.Array) -> jax.Array:
    log_p = jax.nn.log_softmax(logits)  # (B, K)
    return -jnp.take_along_axis(log_p, labels[:, None], axis=1)[:, 0]


def _bernoulli_nll(logits: jax.Array, labels: jax.Array) -> jax.Array:
    logit = logits.reshape(labels.shape)  # (B, 1) or (B,)
    return jax.nn.softplus(jnp.where(labels == 1, -logit, logit))


_ALL = (
    Likelihood(
        name="categorical",
        nll=_categorical_nll,
        correct=lambda logits, labels: jnp.argmax(logits, axis=1) == labels,
    ),
    Likelihood(
        name="bernoulli",
        nll=_bernoulli_nll,
        correct=lambda logits, labels: (logits.reshape(labels.shape) > 0) == (labels == 1),
    ),
)
LIKELIHOODS = {likelihood.name: likelihood for likelihood in _ALL}


def gaussian(noise_precision: float = 1.0) -> Likelihood:
    """Targets with Gaussian noise of known precision (one over its variance) on every output.

    >>> gaussian(4.0).noise_precision
    4.0
    """
    return _gaussian(check_number("noise_precision", noise_precision, "above 0", lambda v: v > 0))


@cache  # compiled programs are kept by the likelihood's identity
def _gaussian(precision: float) -> Likelihood:
    def nll(outputs: jax.Array, targets: jax.Array) -> jax.Array:
        residuals = (outputs - targets.reshape(outputs.shape)).reshape(len(outputs), -1)
        constant = 0.5 * residuals.shape[1] * math.log(2 * math.pi / precision)
        return 0.5 * precision * jnp.sum(residuals**2, axis=1) + constant

    return Likelihood("gaussian", nll, noise_precision=precision)


def resolve_likelihood(
    likelihood: str | Likelihood | Callable[[jax.Array, jax.Array], jax.Array],
) -> Likelihood:
    """A likelihood from its name, from :func:`gaussian`, or from a user's own nll function."""
    if isinstance(likelihood, Likelihood):
        return likelihood
    if callable(likelihood):
        return Likelihood(getattr(likelihood, "__name__", "custom"), likelihood)
    if likelihood == "gaussian":
        return gaussian()
    return LIKELIHOODS[check_choice("likelihood", likelihood, [*LIKELIHOODS, "gaussian"])]
