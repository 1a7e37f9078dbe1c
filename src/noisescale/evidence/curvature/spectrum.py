"""The spectrum of a network's curvature: density, outliers, negative part, trace."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from noisescale.checks import check_whole
from noisescale.errors import InputError
from noisescale.evidence.occam.lanczos import Tridiagonal, lanczos, resolution
from noisescale.seeds import random_stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

_GRID = 400  # points of the density
_TOLERANCE = 1e-6  # of a leading eigenvalue


@dataclass(frozen=True, eq=False, repr=False)
class Spectrum:
    """The eigenvalues of the summed nll's curvature, estimated.

    Attributes:
        n_params: how many there are.
        top: the largest, descending.
        trace, trace_std: their sum and its standard error.
        n_negative, n_negative_std: how many are below -resolution, estimated.
        resolution: how near zero so many Lanczos steps can tell eigenvalues from it.
        smallest: the smallest Ritz value seen.
        nodes, weights: a quadrature of the spectrum, averaged over probes: sum of weights f(nodes)
            estimates sum of f over the eigenvalues.
        curvature: ``"ggn"`` or ``"hessian"``.
        n_probes, n_steps: the work behind it.
    """

    n_params: int
    top: Array
    trace: float
    trace_std: float
    n_negative: float
    n_negative_std: float
    resolution: float
    smallest: float
    nodes: Array
    weights: Array
    curvature: str
    n_probes: int
    n_steps: int

    def density(self, width: float = 0.25) -> tuple[Array, Array]:
        """Eigenvalues and how many there are in each unit of the axis of :meth:`plot`.

        The axis is asinh of the eigenvalue in units of 1e-6 of the largest: linear about zero,
        logarithmic beyond. Each node is a Gaussian of this ``width`` on it.
        """
        unit = 1e-6 * max(float(self.top[0]), abs(self.smallest), 1e-300)
        at = np.arcsinh(self.nodes / unit)
        axis = np.linspace(at.min() - 4 * width, at.max() + 4 * width, _GRID)
        bumps = np.exp(-0.5 * ((axis[:, None] - at) / width) ** 2)
        bumps /= width * math.sqrt(2 * math.pi)
        return unit * np.sinh(axis), bumps @ self.weights

    def plot(self, where: "Axes | str | Path | None" = None) -> "Axes":
        """Draw the density with the leading eigenvalues, into ``where``: axes or a file's path."""
        from matplotlib.axes import Axes
        from matplotlib.figure import Figure

        axes = where if isinstance(where, Axes) else Figure(figsize=(7, 3.5)).add_subplot()
        values, counts = self.density()
        axes.fill_between(values, np.maximum(counts, 1e-3), 1e-3, alpha=0.5)
        axes.plot(
            self.top,
            np.full(len(self.top), 0.5),
            "|",
            color="black",
            markersize=14,
            label=f"{len(self.top)} largest eigenvalues",
        )
        threshold = 1e-6 * max(float(self.top[0]), abs(self.smallest), 1e-300)
        axes.set_xscale("symlog", linthresh=10 * threshold)
        axes.axvspan(
            -self.resolution,
            self.resolution,
            color="grey",
            alpha=0.15,
            linewidth=0,
            label="not told from zero",
        )
        axes.set(
            yscale="log",
            ylim=(1e-2, None),
            ylabel="eigenvalues a unit of the axis",
            xlabel=f"eigenvalue of the {_NAMES[self.curvature]}",
        )
        axes.legend()
        if isinstance(where, (str, Path)):
            axes.figure.savefig(where, bbox_inches="tight")  # type: ignore[union-attr]
        return axes

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name, arrays as lists."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }

    def __repr__(self) -> str:
        top = ", ".join(f"{value:.4g}" for value in self.top[:5])
        more = ", ..." if len(self.top) > 5 else ""
        return (
            f"Spectrum of the {_NAMES[self.curvature]}, {self.n_params:,} eigenvalues: largest "
            f"{top}{more}\n"
            f"  trace {self.trace:.5g} ± {self.trace_std:.2g}, about {self.n_negative:.3g} ± "
            f"{self.n_negative_std:.2g} below -{self.resolution:.2g}, smallest seen "
            f"{self.smallest:.3g}"
        )


_NAMES = {"ggn": "Gauss-Newton matrix", "hessian": "Hessian", "operator": "operator"}


def spectrum_of(
    operator: LinearOperator,
    *,
    curvature: str,
    top_k: int = 10,
    n_probes: int = 4,
    n_steps: int = 64,
    seed: int = 0,
) -> Spectrum:
    """The spectrum of a symmetric operator."""
    p = operator.shape[0]
    check_whole("top_k", top_k, at_least=1)
    check_whole("n_probes", n_probes, at_least=2)
    check_whole("n_steps", n_steps, at_least=2)
    if top_k >= p:
        raise InputError(f"top_k must be below {p}, the number of parameters, got {top_k}.")
    rng = random_stream(seed, "spectrum probes")
    probes = [lanczos(operator, rng.integers(0, 2, p) * 2.0 - 1, n_steps) for _ in range(n_probes)]
    start = rng.normal(size=p)
    top = np.sort(
        eigsh(operator, top_k, which="LA", v0=start, tol=_TOLERANCE, return_eigenvectors=False)
    )[::-1]
    pairs = [probe.quadrature() for probe in probes]
    nodes = np.concatenate([nodes for nodes, _ in pairs])
    near = resolution(nodes, n_steps, p)
    trace, trace_std = _mean(probes, p, lambda h: h)
    below, below_std = _mean(probes, p, lambda h: (h < -near).astype(float))
    return Spectrum(
        n_params=p,
        top=top,
        trace=trace,
        trace_std=trace_std,
        n_negative=below,
        n_negative_std=below_std,
        resolution=near,
        smallest=float(nodes.min()),
        nodes=nodes,
        weights=np.concatenate([share * p / n_probes for _, share in pairs]),
        curvature=curvature,
        n_probes=n_probes,
        n_steps=n_steps,
    )


def _mean(probes: list[Tridiagonal], p: int, f: Any) -> tuple[float, float]:
    values = p * np.array([probe.integrate(f) for probe in probes])
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))
