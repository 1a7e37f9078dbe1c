"""Named approximations of the Gauss-Newton matrix: its diagonal, and Kronecker factors (KFAC).

KFAC takes a layer's block to be (1/N) (sum a a') x (sum D' D) with a the layer's inputs and D the
derivatives at its outputs, and the bias's block to be sum D' D, blocks of other layers being zero:
what the libraries that offer it do.
"""

import numpy as np
import scipy.linalg

from noisescale.errors import InputError
from noisescale.evidence.curvature.model import Model
from noisescale.evidence.curvature.rows import DenseRows, JaxSource, layer_precisions
from noisescale.evidence.occam.dense import Occam
from noisescale.evidence.occam.dual import Array, GenericRows, Rows, Source, output_rows


def diagonal_occam(model: Model, L: Array, gradient: Array) -> Occam:
    """The Occam factor of the Gauss-Newton matrix's diagonal alone."""
    rows = _rows(model)
    if layer_precisions(model, np.ones(model.n_params)) is not None:
        builder = DenseRows(model, [])
        parts = []
        for a, D in zip(builder.inputs, builder.derivatives(rows)[::-1], strict=True):
            squares = np.zeros((len(a), D.shape[1]))
            np.add.at(squares, rows.examples, D**2)
            parts += [squares.sum(axis=0), ((a**2).T @ squares).ravel()]
        return occam_of_diagonal(np.concatenate(parts), L, gradient)
    return occam_of_diagonal(generic_diagonal(JaxSource(model), rows), L, gradient)


def generic_diagonal(source: Source, rows: Rows) -> Array:
    """The Gauss-Newton matrix's diagonal from its rows."""
    diagonal = np.zeros(source.n_params)
    for A in GenericRows(source, np.ones(1)).blocks(rows):
        diagonal += np.einsum("rp,rp->p", A, A)
    return diagonal


def occam_of_diagonal(diagonal: Array, L: Array, gradient: Array) -> Occam:
    """The Occam factor of a diagonal curvature."""
    log_occam = -0.5 * float(np.log1p(diagonal / L).sum())
    return Occam(log_occam, log_occam, 0, 0.0, float((gradient**2 / (diagonal + L)).sum()))


def kfac_occam(model: Model, L: Array, gradient: Array) -> Occam:
    """The Occam factor of the Kronecker-factored Gauss-Newton matrix of a dense network."""
    precisions = layer_precisions(model, L)
    if precisions is None:
        raise InputError(
            "method='kfac' needs a noisescale.DenseNetwork and one prior precision for each of its "
            "arrays: use method='dual', 'lanczos' or 'diagonal'."
        )
    rows = _rows(model)
    builder = DenseRows(model, precisions)
    log_occam = decrement = 0.0
    start = 0
    for a, D, (of_w, of_b) in zip(
        builder.inputs, builder.derivatives(rows)[::-1], precisions, strict=True
    ):
        alpha, U = scipy.linalg.eigh(a.T @ a / len(a))
        gamma, V = scipy.linalg.eigh(D.T @ D)
        alpha, gamma = np.maximum(alpha, 0), np.maximum(gamma, 0)
        d, h = len(alpha), len(gamma)
        of_bias, of_weights = (
            gradient[start : start + h],
            gradient[start + h : start + h + d * h].reshape(d, h),
        )
        start += h + d * h
        both = np.outer(alpha, gamma)
        log_occam -= 0.5 * float(np.log1p(gamma / of_b).sum() + np.log1p(both / of_w).sum())
        decrement += float(((of_bias @ V) ** 2 / (gamma + of_b)).sum())
        decrement += float(((U.T @ of_weights @ V) ** 2 / (both + of_w)).sum())
    return Occam(log_occam, log_occam, 0, 0.0, decrement)


def _rows(model: Model) -> Rows:
    rows = output_rows(JaxSource(model))
    if rows is None:
        raise InputError(
            "the negative log-likelihood is not convex in the outputs: use method='lanczos' or "
            "'dense'."
        )
    return rows
