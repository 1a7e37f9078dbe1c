"""Computing in the precisions that we choose: autocast is off, whoever switched it on.

The caller's ends where the call begins. A module may have ``with torch.autocast(...)`` in its own
``forward`` as well, which would be entered again with every pass; while a call of ours is under
way, entering one does nothing in its thread. Other threads, and everything afterwards, have it as
before.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_lock = threading.Lock()
_here = threading.local()  # ``depth``: calls of ours under way in this thread
_under_way = 0  # in all threads


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function compute in the precisions that it chooses."""

    @wraps(function)
    def exactly(*args: P.args, **kwargs: P.kwargs) -> R:
        with (
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
            _never_entered(),
        ):
            return function(*args, **kwargs)

    return exactly


@contextmanager
def _never_entered() -> Iterator[None]:
    global _under_way
    with _lock:
        if _under_way == 0:
            torch.autocast.__enter__, torch.autocast.__exit__ = _enter, _leave
        _under_way += 1
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        yield
    finally:
        _here.depth -= 1
        with _lock:
            _under_way -= 1
            if _under_way == 0:
                torch.autocast.__enter__, torch.autocast.__exit__ = _ENTER, _LEAVE


_ENTER, _LEAVE = torch.autocast.__enter__, torch.autocast.__exit__


def _enter(self: torch.autocast) -> Any:
    return self if getattr(_here, "depth", 0) else _ENTER(self)


def _leave(self: torch.autocast, *raised: Any) -> Any:
    return None if getattr(_here, "depth", 0) else _LEAVE(self, *raised)
