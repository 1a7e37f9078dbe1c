"""``kfac``: Kronecker factors of a dense network's Gauss-Newton matrix, an approximation.

KFAC takes a layer's block to be (1/N) (sum a a') x (sum D' D) with a the layer's inputs and D the
derivatives at its outputs, and the bias's block to be sum D' D, blocks of other layers being zero:
what the libraries that offer it do.
"""

from collections.abc import Iterator

import numpy as np
import scipy.linalg

from noisescale.errors import InputError
from noisescale.evidence.occam import diagonal
from noisescale.evidence.occam.kernel import output_rows
from noisescale.evidence.occam.term import (
    ONLY_GGN,
    Accuracy,
    Array,
    Curve,
    Occam,
    Term,
    check_curvature,
    curve_of_eigenvalues,
)
from noisescale.evidence.problem import Facts, Problem

_NEEDS = (
    "needs a noisescale.DenseNetwork and one prior precision for each of its arrays: use "
    "method='dual', 'lanczos' or 'diagonal'."
)


def refusal(facts: Facts, curvature: str) -> str | None:
    """It needs the layers of a dense network."""
    if curvature != "ggn":
        return ONLY_GGN
    return _NEEDS if facts.widths is None else None


def cost(facts: Facts, curvature: str) -> tuple[float, float]:
    """The factors are of the size that the diagonal's layers take."""
    return diagonal.cost(facts, curvature)


def term(problem: Problem, L: Array, slope: Array, curvature: str, accuracy: Accuracy) -> Term:
    """From the factors' eigenvalues."""
    layers = problem.dense_layers()
    precisions = None if layers is None else layers.precisions(L)
    if layers is None or precisions is None:
        raise InputError(f"method='kfac' {_NEEDS}")
    log_occam = decrement = 0.0
    parts = zip(_factors(problem), precisions, layers.split(slope), strict=True)
    for (alpha, U, gamma, V), (of_w, of_b), (weights, bias) in parts:
        both = np.outer(alpha, gamma)
        log_occam -= 0.5 * float(np.log1p(gamma / of_b).sum() + np.log1p(both / of_w).sum())
        decrement += float(((bias @ V) ** 2 / (gamma + of_b)).sum())
        decrement += float(((U.T @ weights @ V) ** 2 / (both + of_w)).sum())
    return Term(Occam(log_occam, log_occam, 0, 0.0, decrement))


def curve(
    problem: Problem, curvature: str, accuracy: Accuracy, *, smallest: float, n_values: int
) -> Curve:
    """From the factors' eigenvalues."""
    parts = []
    for alpha, _, gamma, _ in _factors(problem):
        parts += [gamma, np.outer(alpha, gamma).ravel()]
    h = np.concatenate(parts)
    return curve_of_eigenvalues(h, np.ones(len(h)), len(h))


def _factors(problem: Problem) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Eigenvalues alpha and vectors U of (1/N) sum a a', gamma and V of sum D' D, by layer."""
    layers = problem.dense_layers()
    if layers is None:
        raise InputError(f"method='kfac' {_NEEDS}")
    for a, D in zip(layers.inputs, layers.derivatives(output_rows(problem)), strict=True):
        alpha, U = scipy.linalg.eigh(check_curvature(a.T @ a / len(a)))
        gamma, V = scipy.linalg.eigh(check_curvature(D.T @ D))
        yield np.maximum(alpha, 0), U, np.maximum(gamma, 0), V
