"""A model at a point, as the evidence sees it: whatever framework computes its derivatives."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from noisescale.evidence.curvature.model import Model, dense_ggn, dense_hessian, ggn_root
from noisescale.evidence.curvature.products import Precision, curvature_operator, nll_and_gradient
from noisescale.evidence.curvature.rows import JaxSource, builder
from noisescale.evidence.occam.dense import Array, Occam
from noisescale.evidence.occam.dual import NEGLIGIBLE, Kernel, Rows, build_kernel
from noisescale.evidence.occam.kfac import diagonal_occam, kfac_occam
from noisescale.evidence.preflight import Facts
from noisescale.evidence.prior import layers_of, leaf_names

_SMALL = 1 << 28  # bytes of a root that is worth holding whole, for its better accuracy


class Problem(Protocol):
    """What the methods ask of a model; curvatures are of the summed nll, without the prior."""

    @property
    def w(self) -> Array:
        """The flat parameters (p,)."""
        ...

    @property
    def layers(self) -> dict[str, NDArray[np.int64]]:
        """The flat indices of each layer's parameters."""
        ...

    @property
    def n_classes(self) -> int | None:
        """The number of classes, None for a likelihood without."""
        ...

    def facts(self) -> Facts:
        """The sizes that costs depend on."""
        ...

    def nll_and_gradient(self) -> tuple[float, Array]:
        """The summed nll and its gradient."""
        ...

    def operator(self, curvature: str, precision: Precision) -> LinearOperator:
        """The curvature as products."""
        ...

    def dense(self, curvature: str) -> tuple[Array, bool]:
        """The curvature (p, p), and whether it is known to have no negative eigenvalue."""
        ...

    def kernel(self, L: Array, gradient: Array, negligible: float = NEGLIGIBLE) -> Kernel | None:
        """The dual kernel; None if the nll is not convex in the outputs."""
        ...

    def kernel_of_rows(self, L: Array, rows: Rows) -> Array:
        """The dual kernel between these rows, its lower triangle."""
        ...

    def small_root(self) -> Array | None:
        """A matrix whose product with itself is the Gauss-Newton matrix, if it is small."""
        ...

    def approximation(self, method: str, L: Array, gradient: Array) -> Occam:
        """The Occam factor by a named approximation."""
        ...


@dataclass(frozen=True, eq=False)
class JaxProblem:
    """A JAX function at its params."""

    model: Model
    layers: dict[str, NDArray[np.int64]]
    n_classes: int | None

    @classmethod
    def of(cls, model: Model, params: Any, n_classes: int | None) -> "JaxProblem":
        """The problem of a model whose params have this structure."""
        shapes = dict(zip(leaf_names(params), model.architecture.shapes, strict=True))
        return cls(model, layers_of(shapes), n_classes)

    @property
    def w(self) -> Array:
        """The flat parameters."""
        return self.model.w

    def facts(self) -> Facts:
        """The sizes that costs depend on."""
        return Facts.of(self.model)

    def nll_and_gradient(self) -> tuple[float, Array]:
        """The summed nll and its gradient, in blocks of examples."""
        return nll_and_gradient(self.model)

    def operator(self, curvature: str, precision: Precision) -> LinearOperator:
        """The curvature as products."""
        return curvature_operator(self.model, curvature, precision=precision)

    def dense(self, curvature: str) -> tuple[Array, bool]:
        """The curvature (p, p), and whether it is known to have no negative eigenvalue."""
        if curvature == "ggn":
            return dense_ggn(self.model)
        return dense_hessian(self.model), False

    def kernel(self, L: Array, gradient: Array, negligible: float = NEGLIGIBLE) -> Kernel | None:
        """The dual kernel."""
        return build_kernel(JaxSource(self.model), builder(self.model, L), L, gradient, negligible)

    def kernel_of_rows(self, L: Array, rows: Rows) -> Array:
        """The dual kernel between these rows."""
        return builder(self.model, L).matrix(rows)

    def small_root(self) -> Array | None:
        """The Gauss-Newton matrix's root (N C, p), if it is small."""
        size = 8 * len(self.model.x) * self.model.n_outputs * self.model.n_params
        return ggn_root(self.model) if size <= _SMALL else None

    def approximation(self, method: str, L: Array, gradient: Array) -> Occam:
        """The Occam factor by ``"kfac"`` or ``"diagonal"``."""
        return {"kfac": kfac_occam, "diagonal": diagonal_occam}[method](self.model, L, gradient)
