"""How long a computation will take: small parts of it are timed, and the whole follows.

A part of size s takes a + b s^d seconds (d = 1 for rows, 2 for the entries of a kernel between
them), a for what a call costs however little it does. Parts do four times as much, again and
again, until one takes long enough to tell; with t the last and t' the one before, all n take

    T(n) = t + b (n^d - s^d),    b = (t - t') / (s^d - s'^d).

What is done once (programs compiled, modules loaded, ways to differentiate found out) happens
before a clock runs. Where the first part shows that the whole is a matter of a second or two, no
more than that is told: measuring must not take as long as the work.
"""

import math
import time
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import numpy as np

T = TypeVar("T")

_ENOUGH = 0.03  # seconds of a part that is long enough: what else the machine does shows in less
_LONG = 0.15  # seconds of a part after which there is no longer one
_TRIES = 3  # of a part that is shorter, if so many take no longer; two unless it is long
_MORE = 4  # times as much work in the next part
_SHORT = 2.0  # seconds in all below which nobody needs to know how many
_MOST = 0.3  # of a part's time that a call may cost however little it does


def clock() -> float:
    """Seconds, since whenever."""
    return time.perf_counter()


def whole(
    part: Callable[[int], Callable[[], object]],
    n: int,
    *,
    first: int,
    step: int = 1,
    degree: int = 1,
) -> float:
    """Seconds that all ``n`` take, where ``part(s)()`` does ``s`` of them.

    What ``part`` itself does is not counted. Sizes begin with ``first`` and are whole multiples of
    ``step``, a block for which programs are compiled, but for n itself.
    """
    size = _rounded(first, step, n)
    began = clock()
    part(size)()  # with what is done once
    if (most := (clock() - began) * (n / size) ** degree) <= _SHORT:
        return most
    known: list[tuple[float, float]] = []  # s^d, seconds
    while True:
        run = part(size)
        if size % step:  # another program
            run()
        took = fastest(run)
        known.append((float(size) ** degree, took))
        if took * (n / size) ** degree <= _SHORT:
            return extrapolated(known, float(n) ** degree)
        told = took >= _ENOUGH and len(known) > 1 and cost_of_a_call(known) <= _MOST * took
        if size >= n or told or took >= _LONG:
            return extrapolated(known, float(n) ** degree)
        size = _rounded(round(size * _MORE ** (1 / degree)), step, n)


def extrapolated(known: list[tuple[float, float]], work: float) -> float:
    """Seconds that so much ``work`` takes, from those of less: (work, seconds), ascending.

    >>> round(extrapolated([(1.0, 0.3), (4.0, 0.9)], 100.0), 6)
    20.1
    """
    last, took = known[-1]
    a_call = min(cost_of_a_call(known), _MOST * took)  # more would be noise
    return took if work <= last else a_call + (took - a_call) * work / last


def cost_of_a_call(known: list[tuple[float, float]]) -> float:
    """Seconds that the last two parts have in common; none if there is one alone."""
    if len(known) < 2:
        return 0.0
    (before, earlier), (last, took) = known[-2:]
    rate = (took - earlier) / (last - before)
    return min(max(took - rate * last, 0.0), took)


def fastest(function: Callable[[], object]) -> float:
    """Seconds of a call, the fastest of a few if it is short."""
    least, spent, tries = math.inf, 0.0, 0
    while tries < _TRIES and spent < (_ENOUGH if tries > 1 else _LONG):
        began = clock()
        function()
        took = clock() - began
        least, spent, tries = min(least, took), spent + took, tries + 1
    return least


def timed(function: Callable[[], T]) -> tuple[float, T]:
    """Seconds of a call after a first one that does not count, and what it gives."""
    value = function()
    return fastest(function), value


@cache
def arithmetic_rate() -> float:
    """Floating-point operations a second of this machine's matrix product, measured once."""
    a = np.ones((768, 768))
    took, _ = timed(lambda: a @ a)
    return 2 * 768**3 / took


def _rounded(size: int, step: int, n: int) -> int:
    """A whole number of steps, at least one, if there are as many."""
    return min(n, max(1, size // step) * step)
