"""The noise scale of SGD.

    g = epsilon (N/B - 1)/(1 - m),  about  epsilon N/(B (1 - m))  while B is small against N

(section 5 and appendix D of the paper). Nothing here needs JAX.
"""

from noisescale.checks import (
    check_batch_size,
    check_flag,
    check_learning_rate,
    check_momentum,
    check_whole,
)

# What is kept when something else changes: linear epsilon N/(B (1 - m)), exact g itself.
RULES = ("linear", "exact")
SMALL_BATCH = 0.1  # B/N up to which the linear rule is the exact one, but for a tenth


def noise_scale(
    learning_rate: float,
    batch_size: int,
    n_train: int,
    momentum: float = 0.0,
    *,
    approximate: bool = False,
) -> float:
    """The noise scale g = epsilon (N/B - 1)/(1 - m); with ``approximate``, epsilon N/(B (1 - m)).

    >>> import noisescale as ns
    >>> round(ns.noise_scale(0.1, 256, 50_000, momentum=0.9), 4)
    194.3125
    """
    n_train = check_whole("n_train", n_train, at_least=1)
    batch_size = check_batch_size(batch_size, n_train)
    effective = check_learning_rate(learning_rate) / (1 - check_momentum(momentum))
    return effective * loudness(
        batch_size, n_train, "linear" if check_flag("approximate", approximate) else "exact"
    )


def loudness(batch_size: float, n_train: int, rule: str) -> float:
    """N/B or N/B - 1; written so that B = N gives exactly zero."""
    return n_train / batch_size if rule == "linear" else (n_train - batch_size) / batch_size


def batch_size_keeping(kept: float, effective: float, n_train: int, rule: str) -> float:
    """The B, not rounded, at which ``effective * loudness`` is ``kept``; e = epsilon/(1 - m)."""
    return n_train * effective / (kept if rule == "linear" else kept + effective)
