"""The spectrum of a network's curvature: density, outliers, negative part, trace."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from noisescale.arrays import forgets_constants
from noisescale.checks import check_choice, check_number, check_whole
from noisescale.drawing import save_figure
from noisescale.errors import InputError
from noisescale.evidence.occam.krylov import lanczos, resolution
from noisescale.evidence.select import Select
from noisescale.notebook import Displayed
from noisescale.seeds import random_stream
from noisescale.uncertainty import Estimate, mean_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from noisescale.evidence.jax_leaves import ApplyFn
    from noisescale.evidence.jax_problem import LikelihoodLike
    from noisescale.evidence.problem import Problem

Array = NDArray[np.float64]

_GRID = 400  # points of the density
_TOLERANCE = 1e-6  # of a leading eigenvalue
_DENSE = 4_000  # parameters up to which a matrix helps out where ARPACK gives up
_TOP = 10  # leading eigenvalues, unless others are asked for


@dataclass(frozen=True, eq=False, repr=False)
class Spectrum(Displayed):
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
        width = check_number("width", width, "above 0", lambda v: v > 0)
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
            label="not resolved from zero",
        )
        axes.set(
            yscale="log",
            ylim=(1e-2, None),
            ylabel="eigenvalues a unit of the axis",
            xlabel=f"eigenvalue of the {_NAMES[self.curvature]}",
        )
        axes.legend()
        if not (where is None or isinstance(where, Axes)):
            save_figure(axes.figure, where, bbox_inches="tight")  # type: ignore[arg-type]
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
            f"  trace {Estimate(self.trace, self.trace_std)}, about "
            f"{Estimate(self.n_negative, self.n_negative_std)} below -{self.resolution:.2g}, "
            f"smallest seen {self.smallest:.3g}"
        )


_NAMES = {"ggn": "Gauss-Newton matrix", "hessian": "Hessian"}


def spectrum_of(
    problem: "Problem",
    *,
    curvature: str = "hessian",
    top_k: int | None = None,
    n_probes: int = 4,
    n_steps: int = 64,
    seed: int = 0,
) -> Spectrum:
    """The spectrum of a problem's curvature; see :func:`spectrum`."""
    check_choice("curvature", curvature, ("ggn", "hessian"))
    p = len(problem.w)
    top_k = check_whole("top_k", min(_TOP, p) if top_k is None else top_k, at_least=1)
    check_whole("n_probes", n_probes, at_least=2)
    check_whole("n_steps", n_steps, at_least=2)
    if top_k > p:
        raise InputError(f"top_k must be at most {p}, the number of parameters, got {top_k}.")
    problem.nll_and_gradient()  # says so if the point is not finite
    operator = problem.operator(curvature, "float64")
    rng = random_stream(seed, "spectrum probes")
    signs = (rng.integers(0, 2, p).astype(np.float64) * 2 - 1 for _ in range(n_probes))
    probes = [lanczos(operator, z, n_steps) for z in signs]
    top, _ = leading(operator, top_k, tolerance=_TOLERANCE, start=rng.normal(size=p))
    pairs = [probe.quadrature() for probe in probes]
    nodes = np.concatenate([nodes for nodes, _ in pairs])
    near = resolution(nodes, n_steps, p)
    trace = mean_of([p * probe.integrate(lambda h: h) for probe in probes])
    below = mean_of([p * probe.integrate(lambda h: (h < -near).astype(float)) for probe in probes])
    return Spectrum(
        n_params=p,
        top=top,
        trace=trace.value,
        trace_std=trace.std,
        n_negative=below.value,
        n_negative_std=below.std,
        resolution=near,
        smallest=float(nodes.min()),
        nodes=nodes,
        weights=np.concatenate([share * p / n_probes for _, share in pairs]),
        curvature=curvature,
        n_probes=n_probes,
        n_steps=n_steps,
    )


@forgets_constants
def spectrum(
    apply_fn: "ApplyFn",
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    *,
    likelihood: "LikelihoodLike" = "categorical",
    curvature: str = "hessian",
    top_k: int | None = None,
    n_probes: int = 4,
    n_steps: int = 64,
    select: Select | None = None,
    seed: int = 0,
) -> Spectrum:
    """The spectrum of the curvature of the summed nll, without the prior, matrix-free.

    Args:
        apply_fn, params, data, likelihood, curvature, select: as in
            :func:`noisescale.log_evidence`.
        top_k: how many of the largest eigenvalues to find one by one; by default 10, or all if
            there are fewer.
        n_probes, n_steps, seed: of the Lanczos quadrature behind the density.
    """
    from noisescale.evidence.jax_problem import jax_problem

    return spectrum_of(
        jax_problem(apply_fn, params, data, likelihood, select),
        curvature=curvature,
        top_k=top_k,
        n_probes=n_probes,
        n_steps=n_steps,
        seed=seed,
    )


def leading(
    operator: LinearOperator, k: int, *, tolerance: float = 1e-5, start: Array | None = None
) -> tuple[Array, Array]:
    """The ``k`` largest eigenvalues of a symmetric operator, descending, and their vectors (p, k).

    ``tolerance`` is relative; products in float32 are good to about 1e-6.
    """
    p = operator.shape[0]
    if start is None:
        start = random_stream(0, "leading eigenvectors").normal(size=p)
    try:
        if k == p:  # of which ARPACK finds none
            values, vectors = _leading_dense(operator, k, "they are all there are")
        else:
            values, vectors = eigsh(operator, k, which="LA", v0=start, tol=tolerance)
    except ArpackError as error:  # a curvature of zero, or one that is hardly resolved
        values, vectors = _leading_dense(operator, k, str(error))
    order = np.argsort(values)[::-1]
    return values[order], vectors[:, order]


def _leading_dense(operator: LinearOperator, k: int, why: str) -> tuple[Array, Array]:
    p = operator.shape[0]
    if p > _DENSE:
        reason = why.strip().rstrip(".")
        raise InputError(
            f"the {k} largest eigenvalues of {p:,} were not found ({reason}): ask for fewer, or "
            "scale the inputs."
        ) from None
    H = np.asarray(operator @ np.eye(p))
    if not np.isfinite(H).all():
        raise InputError("the curvature is not finite at these parameters: scale the inputs down.")
    values, vectors = np.linalg.eigh((H + H.T) / 2)
    return values[-k:], vectors[:, -k:]
