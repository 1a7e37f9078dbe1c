"""Literal evidences: one example, one parameter, one quadrature point at a time."""

import numpy as np


def numeric_gradient(f, w, h=1e-6):
    return np.array([(f(w + h * e) - f(w - h * e)) / (2 * h) for e in np.eye(len(w))])


def numeric_hessian(f, w, h=1e-4):
    p = len(w)
    H = np.empty((p, p))
    for i, a in enumerate(np.eye(p)):
        for j, b in enumerate(np.eye(p)):
            H[i, j] = (
                f(w + h * a + h * b)
                - f(w + h * a - h * b)
                - f(w - h * a + h * b)
                + f(w - h * a - h * b)
            ) / (4 * h * h)
    return H


def gauss_newton(outputs, nll, w, xs, ys):
    """Sum over examples of J' Lambda J with numeric Jacobians and Hessians."""
    total = np.zeros((len(w), len(w)))
    for x, y in zip(xs, ys, strict=True):
        at = outputs(w, x)
        J = np.array(
            [numeric_gradient(lambda v, c=c, x=x: outputs(v, x)[c], w) for c in range(len(at))]
        )
        total += J.T @ numeric_hessian(lambda f, y=y: nll(f, y), at) @ J
    return total


def log_occam(H, L):
    """-1/2 sum over non-negative mu of ln(1 + mu), from the eigenvalues of H in units of L."""
    mu = np.linalg.eigvalsh(H / np.sqrt(np.outer(L, L)))
    return -0.5 * np.log(1 + mu[mu >= 0]).sum()


def logistic_log_evidence(x, y, repeats, prior_precision, centre):
    """ln of the integral over one or two weights, y = +-1, each example seen ``repeats`` times.

    A sum over a regular grid that ends far out in the tails: for so smooth an integrand its error
    falls faster than any power of the spacing.
    """
    n, d = x.shape
    width = 12 / np.sqrt(prior_precision + 0.05 * n * repeats)
    axis = np.linspace(-width, width, 1501)
    grid = np.stack(np.meshgrid(*[axis] * d, indexing="ij")).reshape(d, -1) + centre[:, None]
    log_joint = -0.5 * prior_precision * (grid**2).sum(axis=0)
    for row, label in zip(x, y, strict=True):
        log_joint -= repeats * np.logaddexp(0, -label * (row @ grid))
    top = log_joint.max()
    edge = log_joint.reshape([1501] * d)[0].max()
    assert edge < top - 40, "the grid cuts the integrand off"
    volume = np.exp(log_joint - top).sum() * (axis[1] - axis[0]) ** d
    return top + np.log(volume) + 0.5 * d * np.log(prior_precision / (2 * np.pi))
