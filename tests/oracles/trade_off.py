"""What another batch size would cost in updates and in examples (McCandlish et al. 2018).

To the same loss, with a learning rate that suits the batch size B and b the critical one,

    updates  = least updates  (1 + b/B),
    examples = least examples (1 + B/b).
"""

from typing import NamedTuple


class TradeOff(NamedTuple):
    """Updates and examples to the same loss, as multiples of those at the reference."""

    updates: float
    examples: float


def trade_off(B, b, *, reference):
    """The cost at B over that at the reference."""
    return TradeOff((1 + b / B) / (1 + b / reference), (B + b) / (reference + b))
