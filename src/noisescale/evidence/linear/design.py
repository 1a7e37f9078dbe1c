"""Training inputs in as few coordinates as they need.

Under an isotropic Gaussian prior the weights can be rotated freely, and directions that no training
example points to keep their prior: they add nothing to the evidence. So features that are zero in
every example are dropped, and where there are more features than examples the inputs are expressed
in an orthonormal basis of their own span (the dual problem, of size N).
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from noisescale.checks import check_memory

Array = NDArray[np.float64]


def _nearly_singular(gram: Array) -> bool:
    """Whether some direction carries so little that rounding could be taken for it."""
    values = np.linalg.eigvalsh(gram)
    return bool(len(values) and values[0] < 1e-12 * values[-1])


@dataclass(frozen=True)
class Design:
    """Inputs ``features`` (N, r) = x @ basis, with a last column of ones for an intercept."""

    features: Array
    live: NDArray[np.intp]  # the input features that some example uses
    basis: Array | None  # orthonormal columns in the space of the live features; None: identity
    n_inputs: int
    fit_intercept: bool

    @classmethod
    def of(cls, x: Any, *, fit_intercept: bool) -> Self:
        """The design of the training inputs ``x``, one row an example; an array or sparse."""
        if scipy.sparse.issparse(x):
            live = np.unique(x.nonzero()[1]).astype(np.intp)
            check_memory("the features in use", 8.0 * x.shape[0] * len(live), "use fewer features")
            used = x[:, live].toarray()
        else:
            live = np.flatnonzero(np.any(x != 0, axis=0))
            used = x[:, live]
        basis = None
        if len(live) > len(used) or _nearly_singular(used.T @ used):
            # The right singular vectors that carry anything: exactly the span of the examples.
            _, s, vt = np.linalg.svd(used, full_matrices=False)
            basis = vt[s > max(used.shape) * np.finfo(float).eps * s[0]].T
            used = np.ascontiguousarray(used @ basis)  # (N, rank)
        features = np.hstack([used, np.ones((len(used), 1))]) if fit_intercept else used
        return cls(features, live, basis, x.shape[1], fit_intercept)

    def precisions(self, prior_precision: float, intercept_precision: float) -> Array:
        """The prior precision of each coordinate."""
        n_weights = self.features.shape[1] - self.fit_intercept
        return np.append(
            np.full(n_weights, prior_precision), [intercept_precision] * self.fit_intercept
        )

    def project(self, x: Any) -> tuple[Array, Array]:
        """New inputs in these coordinates, and the squared length of what lies outside them."""
        if scipy.sparse.issparse(x):
            x = x.toarray()
        inside = x[:, self.live]
        if self.basis is not None:
            inside = inside @ self.basis
        outside = np.maximum((x**2).sum(axis=1) - (inside**2).sum(axis=1), 0.0)
        features = np.hstack([inside, np.ones((len(x), 1))]) if self.fit_intercept else inside
        return features, outside

    def expand(self, coefficients: Array) -> tuple[Array, Array]:
        """Weights (d, C) on the original features and intercepts (C,), from (r, C)."""
        weights, intercept = coefficients, np.zeros(coefficients.shape[1])
        if self.fit_intercept:
            weights, intercept = coefficients[:-1], coefficients[-1]
        if self.basis is not None:
            weights = self.basis @ weights
        full = np.zeros((self.n_inputs, coefficients.shape[1]))
        full[self.live] = weights
        return full, intercept
