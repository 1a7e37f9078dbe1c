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
    from noisescale.evidence.problem import Rows

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DenseLayers:
    """Each layer's inputs (N, d) and weights (d, h)."""

    inputs: list[Array]
    weights: list[Array]

    @classmethod
    def of(cls, params: Any, x: NDArray[Any]) -> "DenseLayers":
        """The layers of a dense network at ``params``, in float64."""
        wide = [{name: np.asarray(leaf, float) for name, leaf in layer.items()} for layer in params]
        inputs = layer_inputs(wide, x.astype(float, copy=False))
        return cls(inputs, [layer["w"] for layer in wide])

    def derivatives(self, rows: "Rows") -> list[Array]:
        """D (n, h) of every layer."""
        active = (a[rows.examples] > 0 for a in reversed(self.inputs[1:]))
        return layer_derivatives(rows.coefficients, self.weights, active)

    def split(self, flat: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """A flat vector's part for each layer's weights (d, h) and bias (h,)."""
        start = 0
        for d, h in (W.shape for W in self.weights):
            middle, stop = start + h, start + h + d * h  # b comes before w
            yield flat[middle:stop].reshape(d, h), flat[start:middle]
            start = stop

    def precisions(self, L: Array) -> list[tuple[float, float]] | None:
        """(weights', bias') precision of each layer; None if they differ within an array."""
        parts = list(self.split(L))
        if any(np.ptp(part) != 0 for pair in parts for part in pair):
            return None
        return [(float(w.flat[0]), float(b[0])) for w, b in parts]
