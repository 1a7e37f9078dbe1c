"""``diagonal``: the Gauss-Newton matrix's diagonal alone, an approximation.

|I + diag(H)/L|, with H_kk the sum of squared entries k of the rows of its root.
"""

import numpy as np

from noisescale.evidence.occam.kernel import output_rows, row_blocks
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


def refusal(facts: Facts, curvature: str) -> str | None:
    """It goes by rows of the Gauss-Newton matrix's root."""
    return None if curvature == "ggn" else ONLY_GGN


def cost(facts: Facts, curvature: str) -> tuple[float, float]:
    """A few vectors, and what a dense network's layers take."""
    memory, work = 24.0 * facts.p, facts.rows * 3 * facts.pass_flops
    if facts.widths is not None:
        work += sum(10 * w**3 for w in facts.widths)
        memory += 8.0 * (3 * sum(w**2 for w in facts.widths) + facts.rows * sum(facts.widths))
    return memory, work


def term(problem: Problem, L: Array, slope: Array, curvature: str, accuracy: Accuracy) -> Term:
    """From the diagonal."""
    h = ggn_diagonal(problem)
    log_occam = -0.5 * float(np.log1p(h / L).sum())
    return Term(Occam(log_occam, log_occam, 0, 0.0, float((slope**2 / (h + L)).sum())))


def curve(
    problem: Problem, curvature: str, accuracy: Accuracy, *, smallest: float, n_values: int
) -> Curve:
    """From the diagonal."""
    h = ggn_diagonal(problem)
    return curve_of_eigenvalues(h, np.ones(len(h)), len(h))


def ggn_diagonal(problem: Problem) -> Array:
    """The Gauss-Newton matrix's diagonal (p,), layer by layer or row by row."""
    rows = output_rows(problem)
    layers = problem.dense_layers()
    if layers is None:
        h = np.zeros(len(problem.w))
        for A in row_blocks(problem, rows):
            h += np.einsum("rp,rp->p", A, A)
        return check_curvature(h)
    parts = []
    for a, D in zip(layers.inputs, layers.derivatives(rows), strict=True):
        squares = np.zeros((len(a), D.shape[1]))
        np.add.at(squares, rows.examples, D**2)
        parts += [squares.sum(axis=0), ((a**2).T @ squares).ravel()]  # b comes before w
    return check_curvature(np.concatenate(parts))
