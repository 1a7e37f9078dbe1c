"""``diagonal``: the Gauss-Newton matrix's diagonal alone, an approximation.

|I + diag(H)/L|, with H_kk the sum of squared entries k of the rows of its root.
"""

import numpy as np

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


def refusal(facts: Facts, curvature: str) -> str | None:
    """It goes by rows of the Gauss-Newton matrix's root."""
    return None if curvature == "ggn" else ONLY_GGN


def cost(facts: Facts, curvature: str) -> tuple[float, float]:
    """A few vectors; the rows' passes, and forming them unless layers spare that."""
    return 40.0 * facts.p, facts.N * facts.pass_flops + facts.rows * 2 * facts.pass_flops


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
    """The Gauss-Newton matrix's diagonal (p,)."""
    return check_curvature(problem.squared_rows(output_rows(problem)))
