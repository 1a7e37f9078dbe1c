"""A dense network's layers on its training set, in NumPy: behind ``dual``'s fast path and ``kfac``.

With a the inputs of a layer and D the derivatives of rows c' f_i at its outputs, a row's part in
the layer is the outer product of a_i and D, and D alone for the bias.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from noisescale.training.dense import layer_derivatives, layer_inputs

if TYPE_CHECKING:
    from noisescale.evidence.rows import Rows

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DenseLayers:
    """Each layer's inputs (N, d) and weights (d, h)."""

    inputs: list[Array]
    weights: list[Array]

    @classmethod
    def of(cls, params: Any, x: NDArray[Any]) -> "DenseLayers":
        """The layers of a dense network at ``params``."""
        wide = [
            {name: np.asarray(leaf, np.float64) for name, leaf in layer.items()} for layer in params
        ]
        inputs = layer_inputs(wide, x.astype(np.float64, copy=False))
        return cls(inputs, [layer["w"] for layer in wide])

    def derivatives(self, rows: "Rows") -> list[Array]:
        """D (n, h) of every layer."""
        active = ((a > 0)[rows.examples] for a in reversed(self.inputs[1:]))
        return layer_derivatives(rows.coefficients, self.weights, active)

    def squares(self, rows: "Rows") -> list[Array]:
        """The squared entries of all rows, summed: of each layer's bias (h,) and weights (d, h).

        Every example has a row.
        """
        parts = []
        first = np.searchsorted(rows.examples, np.arange(len(self.inputs[0])))
        for a, D in zip(self.inputs, self.derivatives(rows), strict=True):
            squares = np.add.reduceat(D**2, first) if len(first) else D[:0]  # of each example
            parts += [squares.sum(axis=0), (a**2).T @ squares]
        return parts

    def split(self, flat: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """A flat vector's part for each layer's weights (d, h) and bias (h,)."""
        return split_layers(flat, [(W.shape[0], W.shape[1]) for W in self.weights])

    def precisions(self, L: Array) -> list[tuple[float, float]] | None:
        """(weights', bias') precision of each layer; None if they differ within an array."""
        parts = list(self.split(L))
        if any(np.ptp(part) != 0 for pair in parts for part in pair):
            return None
        return [(float(w.flat[0]), float(b[0])) for w, b in parts]


def split_layers(
    flat: NDArray[Any], sides: list[tuple[int, int]]
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """A flat vector's part for the weights (d, h) and the bias (h,) of layers with these sides."""
    start = 0
    for d, h in sides:
        middle, stop = start + h, start + h + d * h  # b comes before w
        yield flat[middle:stop].reshape(d, h), flat[start:middle]
        start = stop
