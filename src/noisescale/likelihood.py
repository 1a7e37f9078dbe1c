"""What a model's outputs say about a label: negative log-likelihood and accuracy.

A likelihood is chosen by name, everywhere in noisescale. ``apply_fn(params, x)`` returns logits;
the functions here turn them into nats per example.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from noisescale.checks import check_choice, check_number
from noisescale.errors import InputError


@dataclass(frozen=True)
class Likelihood:
    """A named likelihood of targets given a model's outputs.

    Attributes:
        name: what users call it.
        nll: ``(outputs, targets) -> nats``, one number an example.
        correct: ``(outputs, labels) -> bool``, whether the likeliest class is the label; None for
            a likelihood without classes.
    """

    name: str
    nll: Callable[[jax.Array, jax.Array], jax.Array]
    correct: Callable[[jax.Array, jax.Array], jax.Array] | None = None


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


@cache
def gaussian(noise_precision: float = 1.0) -> Likelihood:
    """Targets with Gaussian noise of known precision (one over its variance) on every output."""
    precision = check_number("noise_precision", noise_precision, "above 0", lambda v: v > 0)

    def nll(outputs: jax.Array, targets: jax.Array) -> jax.Array:
        residuals = (outputs - targets.reshape(outputs.shape)).reshape(len(outputs), -1)
        constant = 0.5 * residuals.shape[1] * math.log(2 * math.pi / precision)
        return 0.5 * precision * jnp.sum(residuals**2, axis=1) + constant

    return Likelihood("gaussian", nll)


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


def check_outputs(likelihood: Likelihood, shape: tuple[int, ...], n_examples: int) -> int:
    """The number of classes that outputs of this ``shape`` tell apart."""
    if likelihood.name == "bernoulli":
        allowed: tuple[tuple[int, ...], ...] = ((n_examples,), (n_examples, 1))
        if shape not in allowed:
            raise InputError(
                f"the bernoulli likelihood needs one logit an example, but apply_fn returns shape "
                f"{shape} for {n_examples} examples: use likelihood='categorical'."
            )
    elif len(shape) != 2 or shape[0] != n_examples or shape[1] < 2:
        raise InputError(
            f"the categorical likelihood needs a logit for each of two or more classes, but "
            f"apply_fn returns shape {shape} for {n_examples} examples."
        )
    return shape[1] if likelihood.name == "categorical" else 2


def check_labels(labels: NDArray[Any], n_classes: int, what: str) -> NDArray[np.int32]:
    """``labels`` as int32 in ``range(n_classes)``, or one sentence with the first wrong one."""
    if labels.ndim != 1:
        raise InputError(f"{what} must be one-dimensional, got shape {labels.shape}.")
    if labels.dtype.kind not in "iub":
        raise InputError(f"{what} must be whole numbers, got dtype {labels.dtype}.")
    wrong = (labels < 0) | (labels >= n_classes)
    if wrong.any():
        at = int(wrong.argmax())
        raise InputError(
            f"{what} must lie in 0..{n_classes - 1} for a model of {n_classes} classes, "
            f"got {labels[at]} at position {at}."
        )
    return labels.astype(np.int32)
