"""What another batch size would cost in updates and in examples (McCandlish et al. 2018).

To the same loss, with a learning rate that suits the batch size B and b the critical one,

    updates  = least updates  (1 + b/B),
    examples = least examples (1 + B/b),

so that at B = b both are twice their least. The law is of runs in which b stays the same.

>>> trade_off(64, 128.0, reference=32)
TradeOff(batch_size=64, updates=0.6, examples=1.2)
"""

from dataclasses import dataclass

from noisescale.checks import check_number


@dataclass(frozen=True)
class TradeOff:
    """Updates and examples to the same loss, as multiples of those at the reference."""

    batch_size: float
    updates: float
    examples: float


def trade_off(batch_size: float, critical_batch_size: float, *, reference: float) -> TradeOff:
    """The cost at ``batch_size`` over that at the ``reference``."""
    B, b, B0 = (
        check_number(name, value, "above 0", lambda v: v > 0)
        for name, value in (
            ("batch_size", batch_size),
            ("critical_batch_size", critical_batch_size),
            ("reference", reference),
        )
    )
    return TradeOff(batch_size, updates=(1 + b / B) / (1 + b / B0), examples=(B + b) / (B0 + b))
