"""What a model's outputs say about a label: negative log-likelihood and accuracy.

A likelihood is chosen by name, everywhere in noisescale. ``apply_fn(params, x)`` returns logits;
the functions here turn them into nats per example.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from noisescale.errors import InputError


@dataclass(frozen=True)
class Likelihood:
    """A named likelihood of class labels.

    Attributes:
        name: what users call it.
        nll: ``(outputs, labels) -> nats``, one number an example.
        correct: ``(outputs, labels) -> bool``, whether the likeliest class is the label.
        classes: how many classes outputs of this width tell apart.
    """

    name: str
    nll: Callable[[jax.Array, jax.Array], jax.Array]
    correct: Callable[[jax.Array, jax.Array], jax.Array]
    classes: Callable[[int], int]


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
        classes=lambda width: width,
    ),
    Likelihood(
        name="bernoulli",
        nll=_bernoulli_nll,
        correct=lambda logits, labels: (logits.reshape(labels.shape) > 0) == (labels == 1),
        classes=lambda width: 2,
    ),
)
LIKELIHOODS = {likelihood.name: likelihood for likelihood in _ALL}


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
    return likelihood.classes(shape[-1])


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
