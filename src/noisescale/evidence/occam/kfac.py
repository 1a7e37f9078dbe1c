"""``kfac``: Kronecker factors of the layers' Gauss-Newton matrices, an approximation.

KFAC takes a layer's block to be B x A, A the mean of a a' over the layer's inputs a and B the sum
of b b' over the derivatives b of the Gauss-Newton matrix's rows at its outputs (all classes, none
sampled), and the bias's block to be B; blocks of other layers are zero. Positions of a sequence or
a convolution count as further examples: what the libraries that offer it do, and call "expand".
Parameters that multiply nothing (tables, norms) have their diagonal alone, which
``details["kfac_diagonal"]`` names.
"""

from collections.abc import Iterator

import numpy as np

from noisescale.errors import InputError
from noisescale.evidence.occam.kernel import output_rows
from noisescale.evidence.occam.semidefinite import (
    LOW_RANK,
    Spectral,
    Tridiagonal,
    Within,
    semidefinite_eigh,
    solved_when_shifted,
)
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
from noisescale.evidence.pace import advance, attended, stage
from noisescale.evidence.problem import Facts, Kronecker, KroneckerBlock, Problem

_NEEDS = (
    "needs layers that multiply: a noisescale.DenseNetwork in JAX, Linear or convolutional layers "
    "in PyTorch, and one prior precision for each of their arrays; use method='dual', 'lanczos' or "
    "'diagonal'."
)


def refusal(facts: Facts, curvature: str) -> str | None:
    """It needs layers that multiply."""
    if curvature != "ggn":
        return ONLY_GGN
    return None if facts.weights else _NEEDS


def cost(facts: Facts, curvature: str) -> tuple[float, float]:
    """The rows' passes without forming them, the factors and their eigenvalues."""
    k = facts.rows_an_example
    sides = [(w.inputs, w.outputs, w.positions, w.groups) for w in facts.weights]
    factors = sum(g * 2 * T * (i**2 + k * o**2) for i, o, T, g in sides)
    eigen = 10 * _cubes(facts)
    memory = 8.0 * (sum(g * 3 * (i**2 + o**2) for i, o, _, g in sides) + 4 * facts.p)
    return memory, facts.N * ((1 + k) * facts.pass_flops + factors) + eigen


def term(problem: Problem, L: Array, slope: Array, curvature: str, accuracy: Accuracy) -> Term:
    """From the factors' eigenvalues."""
    kronecker = _kronecker(problem)
    log_occam = decrement = 0.0
    _announce(kronecker)
    for block in kronecker.blocks:
        of_w, of_weight = _one(L[block.weight], block.name), slope[block.weight]  # (o, i)
        # Eigenvectors of the smaller factor are enough: in their basis what is left to solve with
        # is the other, shifted.
        swapped = len(block.outputs) < len(block.inputs)
        other, own = (block.inputs, block.outputs) if swapped else (block.outputs, block.inputs)
        alpha, U = _eigh(own)
        shifted = _shifted(other)
        gamma = shifted.values
        log_occam -= 0.5 * float(np.log1p(np.outer(gamma, alpha) / of_w).sum())
        slopes = of_weight.T if swapped else of_weight  # (n of the other, n of the own)
        along = slopes @ U
        decrement += float(sum(shifted.inverse(along, alpha, of_w)))
        decrement += _beside(slopes, along) / of_w
        if block.bias is not None:
            of_b, of_bias = _one(L[block.bias], block.name), slope[block.bias]
            if swapped:
                log_occam -= 0.5 * float(np.log1p(alpha / of_b).sum())
                along = of_bias @ U
                decrement += float((along**2 / (alpha + of_b)).sum())
                decrement += _beside(of_bias, along) / of_b
            else:
                log_occam -= 0.5 * float(np.log1p(gamma / of_b).sum())
                decrement += float(sum(shifted.inverse(of_bias[:, None], np.ones(1), of_b)))
    rest, h = kronecker.rest, kronecker.diagonal
    log_occam -= 0.5 * float(np.log1p(h / L[rest]).sum())
    decrement += float((slope[rest] ** 2 / (h + L[rest])).sum())
    details = {"kfac_diagonal": kronecker.rest_names} if kronecker.rest_names else {}
    return Term(Occam(log_occam, log_occam, 0, 0.0, decrement), details=details)


def curve(
    problem: Problem, curvature: str, accuracy: Accuracy, *, smallest: float, n_values: int
) -> Curve:
    """From the factors' eigenvalues."""
    kronecker = _kronecker(problem)
    parts = [kronecker.diagonal]
    for block, alpha, gamma in _eigen(kronecker):
        parts.append(np.outer(gamma, alpha).ravel())
        if block.bias is not None:
            parts.append(gamma)
    h = np.concatenate(parts)
    return curve_of_eigenvalues(h, np.ones(len(h)), len(problem.w))


def _cubes(facts: Facts) -> float:
    """Of the factors' sides, or what is as much work where few examples leave a low rank."""
    total = 0.0
    for w in facts.weights:
        terms = facts.N * w.positions
        for side, rank in ((w.inputs, terms), (w.outputs, terms * facts.rows_an_example)):
            low = rank <= LOW_RANK * side
            total += w.groups * (rank**3 + 0.5 * side * rank**2 if low else float(side) ** 3)
    return total


def _kronecker(problem: Problem) -> Kronecker:
    kronecker = problem.kronecker(output_rows(problem))
    if kronecker is None:
        raise InputError(f"method='kfac' {_NEEDS}")
    check_curvature(kronecker.diagonal)
    return kronecker


def _announce(kronecker: Kronecker) -> None:
    sides = [(len(block.inputs), len(block.outputs)) for block in kronecker.blocks]
    stage("eigenvalues", sum(float(i) ** 3 + float(o) ** 3 for i, o in sides))


def _eigen(kronecker: Kronecker) -> Iterator[tuple[KroneckerBlock, Array, Array]]:
    """Eigenvalues of both factors, all but zeros, block by block."""
    _announce(kronecker)
    for block in kronecker.blocks:
        yield block, _shifted(block.inputs).values, _shifted(block.outputs).values


def _eigh(matrix: Array) -> tuple[Array, Array]:
    n = float(len(matrix))
    values, vectors = attended(10 * n**3, semidefinite_eigh, check_curvature(matrix))
    advance(n**3)
    return values, vectors


def _shifted(matrix: Array) -> Spectral | Tridiagonal | Within:
    n = float(len(matrix))
    made = attended(3 * n**3, solved_when_shifted, check_curvature(matrix))
    advance(n**3)
    return made


def _beside(slope: Array, along: Array) -> float:
    """The squared length of a slope outside of the eigenvectors' span: nothing is curved there."""
    return max(float(np.vdot(slope, slope) - np.vdot(along, along)), 0.0)


def _one(precisions: Array, name: str) -> float:
    """The precision that all of an array's parameters share."""
    first = float(precisions.flat[0])
    if (precisions != first).any():
        raise InputError(
            f"method='kfac' {_NEEDS[:-1]}: the precisions of {name} lie between "
            f"{precisions.min():.3g} and {precisions.max():.3g}."
        )
    return first
