"""Unbiased |G|^2 and tr S from one batch, without a second one.

The batch's gradient is C = sum_i c_i over independent examples with contributions c_i = w_i g_i,
where the loss weights example i by w_i (1/B for a mean over B examples) and sum_i w_i = 1. With
G the mean of every g_i and V the variance of C,

    E |C|^2         = |G|^2 + V,
    E sum_i |c_i|^2 = |G|^2 sum_i w_i^2 + V,

so that, with q = sum_i w_i^2,

    |G|^2 = (|C|^2 - sum_i |c_i|^2)/(1 - q),
    V     = (sum_i |c_i|^2 - q |C|^2)/(1 - q)

are unbiased whatever the weights. V shrinks as one over the batch: tr S = V B with B = 1/q examples
(the batch size itself for equal weights), or B = all valid tokens, if the loss is a mean over the
tokens of sequences of unlike lengths and tokens are what is counted. The norms of m of the n
examples, drawn at random and scaled up by n/m, leave all of this unbiased.

>>> c = [[0.5, 0.0], [0.0, 0.5]]  # two examples, g = (1, 0) and (0, 1)
>>> Batch(total_sq=0.5, sum_sq=0.5, weight_sq=0.5, n_examples=2, n_units=2.0).readings
(0.0, 1.0)
"""

import math
from dataclasses import dataclass

_ROUNDING = 100.0  # eps that two norms of the same gradients may be apart


@dataclass(frozen=True)
class Batch:
    """What one update's batch shows.

    Attributes:
        total_sq: |C|^2.
        sum_sq: sum_i |c_i|^2, or its estimate from some of the examples.
        weight_sq: q.
        n_examples: how many there are.
        n_units: what V is multiplied by: 1/q examples, or the number of valid tokens.
        eps: of the arithmetic behind the norms. A V that is lost in their rounding is taken as 0.
    """

    total_sq: float
    sum_sq: float
    weight_sq: float
    n_examples: int
    n_units: float
    eps: float = 0.0

    @property
    def readings(self) -> tuple[float, float]:
        """|G|^2 and tr S; NaN if one example is all there is."""
        rest = 1 - self.weight_sq
        if self.n_examples < 2 or not rest > 0:
            return math.nan, math.nan
        signal = (self.total_sq - self.sum_sq) / rest
        variance = (self.sum_sq - self.weight_sq * self.total_sq) / rest
        if abs(variance) <= _ROUNDING * self.eps * self.sum_sq:
            variance = 0.0
        return signal, variance * self.n_units
