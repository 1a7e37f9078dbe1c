"""The likelihoods of :mod:`noisescale.likelihood` in JAX: nats per example.

Outputs come as (b, C), or as the model gives them; a sequence's (b, T C) are told from its labels.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from noisescale.likelihood import Likelihood

Nll = Callable[[jax.Array, jax.Array], jax.Array]


def nll_of(likelihood: Likelihood) -> Nll:
    """``(outputs, targets) -> nats``, one number an example."""
    if likelihood.function is not None:
        return likelihood.function
    if likelihood.name == "gaussian":
        assert likelihood.noise_precision is not None  # estimated where the outputs are known
        return _gaussian(likelihood.noise_precision)
    if likelihood.name == "categorical":
        return _categorical(likelihood.ignore_index)
    return {"bernoulli": _bernoulli, "poisson": _poisson}[likelihood.name]


def correct_of(likelihood: Likelihood) -> Callable[[jax.Array, jax.Array], jax.Array] | None:
    """Whether the likeliest class is the label; None for a likelihood without classes."""
    if not likelihood.has_classes:
        return None
    if likelihood.name == "categorical":
        return lambda logits, labels: jnp.argmax(logits, axis=1) == labels
    return lambda logits, labels: (logits.reshape(labels.shape) > 0) == (labels == 1)


def _categorical(ignored: int) -> Nll:
    def nll(logits: jax.Array, labels: jax.Array) -> jax.Array:
        if labels.ndim == 1:
            log_p = jax.nn.log_softmax(logits)  # (B, K)
            return -jnp.take_along_axis(log_p, labels[:, None], axis=1)[:, 0]
        log_p = jax.nn.log_softmax(logits.reshape(*labels.shape, -1))  # (B, T, K)
        counts = labels != ignored
        chosen = jnp.where(counts, labels, 0)[..., None]
        each = -jnp.take_along_axis(log_p, chosen, axis=2)[..., 0]  # (B, T)
        return jnp.sum(jnp.where(counts, each, 0.0), axis=1)

    return nll


def _bernoulli(logits: jax.Array, labels: jax.Array) -> jax.Array:
    logit = logits.reshape(labels.shape)  # (B, 1) or (B,)
    return jax.nn.softplus(jnp.where(labels == 1, -logit, logit))


def _gaussian(precision: float) -> Nll:
    def nll(outputs: jax.Array, targets: jax.Array) -> jax.Array:
        residuals = (outputs - targets.reshape(outputs.shape)).reshape(len(outputs), -1)
        constant = 0.5 * residuals.shape[1] * math.log(2 * math.pi / precision)
        return 0.5 * precision * jnp.sum(residuals**2, axis=1) + constant

    return nll


def _poisson(outputs: jax.Array, counts: jax.Array) -> jax.Array:
    counts = counts.reshape(outputs.shape).astype(outputs.dtype)
    each = jnp.exp(outputs) - counts * outputs + jax.lax.lgamma(counts + 1)
    return jnp.sum(each.reshape(len(outputs), -1), axis=1)
