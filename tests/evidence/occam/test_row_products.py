"""Products of directions with rows, however many rows an example has."""

import numpy as np
import pytest

from noisescale.evidence.occam import kernel
from noisescale.evidence.rows import Rows


class Linear:
    """Outputs W_e w of example e: the derivative along a direction is W_e times it."""

    activations = 5

    def __init__(self, rng, n, C, p):
        self.W = rng.normal(size=(n, C, p))

    def derivatives(self, chosen, directions):
        return np.einsum("ecp,bp->bec", self.W[chosen], directions)


@pytest.mark.parametrize("room", [1, 200, 1 << 20])  # bytes: an example, some, all at a time
def test_products_are_those_of_the_rows(monkeypatch, room):
    rng = np.random.default_rng(0)
    problem = Linear(rng, n=7, C=4, p=6)
    examples = np.repeat(np.arange(7), [3, 1, 4, 2, 5, 1, 2])
    rows = Rows(examples, rng.normal(size=(len(examples), 4)))
    directions = rng.normal(size=(3, 6))
    monkeypatch.setattr(kernel, "BLOCK_BYTES", room)
    truth = [
        [c @ problem.W[e] @ v for e, c in zip(rows.examples, rows.coefficients, strict=True)]
        for v in directions
    ]
    np.testing.assert_allclose(kernel.row_products(problem, directions, rows), truth, rtol=1e-12)
