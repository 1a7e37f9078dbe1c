"""How far a long computation is: told at least every other second, with the time that is left.

Whoever asks for progress opens :func:`spoken`; whatever computes says which ``stage`` it is in and
how much of it is done, block by block. Native code that takes longer than a block (a factorisation)
runs under :func:`attended`, where Ctrl-C and progress still get through.
"""

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

EVERY = 1.0  # seconds between two messages
_WORTH = 5e9  # operations above which native code is attended: some tenths of a second


class Pace:
    """What was done of a stage, since when, and who wants to know."""

    def __init__(
        self, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell, self._clock = tell, clock
        self._said = clock()
        self._last = ""
        self.begin("starting", 0.0)

    def begin(self, name: str, total: float) -> None:
        """A stage of so much work, in any unit."""
        self._name, self._total, self._done = name, total, 0.0
        self._began = self._clock()

    def advance(self, work: float) -> None:
        """So much of it is done."""
        self._done += work
        self.tick()

    def tick(self, text: str | None = None) -> None:
        """Speak, unless that was done a moment ago: how far the stage is, or ``text``."""
        if self._clock() - self._said >= EVERY:
            self._said = self._clock()
            self._tell(text or str(self))

    def say(self, text: str) -> None:
        """What must be heard, at once; once, if it is said again."""
        if text != self._last:
            self._last = text
            self._tell(text)

    def __str__(self) -> str:
        if not 0 < self._done <= self._total:
            passed = self._clock() - self._began
            return f"{self._name}: {passed:.0f} s so far"
        left = (self._clock() - self._began) * (self._total - self._done) / self._done
        return f"{self._name}: {self._done / self._total:.0%}, {shown_seconds(left)} left"


_PACE: ContextVar[Pace | None] = ContextVar("pace", default=None)


@contextmanager
def spoken(tell: Callable[[str], None] | None) -> Iterator[None]:
    """The time in which ``tell`` hears how far it is; None hears nothing."""
    token = _PACE.set(None if tell is None else Pace(tell))
    try:
        yield
    finally:
        _PACE.reset(token)


def speaks(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose keyword ``accuracy`` says who hears how far it is."""

    @wraps(function)
    def speaking(*args: P.args, **kwargs: P.kwargs) -> T:
        with spoken(getattr(kwargs.get("accuracy"), "progress", None)):
            return function(*args, **kwargs)

    return speaking


def stage(name: str, total: float = 0.0) -> None:
    """A stage of so much work begins."""
    if (pace := _PACE.get()) is not None:
        pace.begin(name, total)


def advance(work: float) -> None:
    """So much of the stage is done."""
    if (pace := _PACE.get()) is not None:
        pace.advance(work)


def say(text: str) -> None:
    """What must be heard, at once; once, if it is said again."""
    if (pace := _PACE.get()) is not None:
        pace.say(text)


def tick(text: str | None = None) -> None:
    """It still goes on: for loops that do not know their share of a stage."""
    if (pace := _PACE.get()) is not None:
        pace.tick(text)


def attended(work: float, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """``function(...)``, which does so much ``work`` in native code, in a thread of its own.

    The main thread waits in small steps: signals are handled between Python's instructions alone.
    After Ctrl-C the native call runs on unheard until it returns or the process ends.
    """
    if work < _WORTH:
        return function(*args, **kwargs)
    outcome: dict[str, Any] = {}
    context = contextvars.copy_context()

    def run() -> None:
        try:
            outcome["value"] = context.run(function, *args, **kwargs)
        except BaseException as error:  # raised again where it was called
            outcome["error"] = error

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(0.1)
        tick()
    if "error" in outcome:
        raise outcome["error"]
    value: T = outcome["value"]
    return value


def shown_seconds(seconds: float) -> str:
    """A time in the unit that fits it."""
    if seconds < 1:
        return "under a second"
    unit = "s"
    for longer, length in (("min", 60), ("h", 60), ("days", 24)):
        if seconds < 2 * length:
            break
        seconds, unit = seconds / length, longer
    return f"about {seconds:.2g} {unit}" if seconds < 99.5 else f"about {seconds:,.0f} {unit}"
