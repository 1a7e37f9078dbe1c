"""How far the work is: bars on a terminal, lines elsewhere, or nothing."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from noisescale.checks import check_flag
from noisescale.text import printable

_EVERY = 10.0  # seconds between lines


class Run(Protocol):
    """What a progress must know of a run."""

    @property
    def cost(self) -> float:
        """Its work, in a unit that all runs of a sweep share."""
        ...

    def merit(self, final: Mapping[str, Any]) -> tuple[float, str] | None:
        """How well it did by its ``final`` numbers, more is better, and the same in words.

        None if they do not say.
        """
        ...


class Progress:
    """Hears what happens, and says nothing. Subclasses show it.

    Functions with an argument ``progress`` take False for nothing, True for what suits the place
    where stderr goes (bars on a terminal, lines elsewhere), or an object of this class.
    """

    def line(self, text: str) -> None:
        """Something began or is worth knowing."""

    def decided(self, text: str) -> None:
        """Something was found that should stay to be read."""

    @contextmanager
    def sweep(self, runs: Sequence[Run], *, n_stored: int) -> Iterator[None]:
        """The time in which these ``runs`` are executed; ``n_stored`` others are there already."""
        self._tally = _Tally(runs, n_stored)
        yield

    def finished(self, run: Run, record: dict[str, Any]) -> None:
        """A run of the sweep came to its end."""
        self._tally.add(run, record)

    def close(self) -> None:
        """Nothing more will be told."""


class LineProgress(Progress):
    """A line now and then, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = 0.0

    def line(self, text: str) -> None:
        """Print it."""
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    decided = line

    @contextmanager
    def sweep(self, runs: Sequence[Run], *, n_stored: int) -> Iterator[None]:
        """Announce the runs, and sum up at the end."""
        with super().sweep(runs, n_stored=n_stored):
            stored = f", {n_stored} are in the store" if n_stored else ""
            self.line(f"{len(runs)} runs to make{stored}")
            self._last = time.monotonic()
            yield
            self.line(str(self._tally))

    def finished(self, run: Run, record: dict[str, Any]) -> None:
        """Say how far it is, unless that was said a moment ago."""
        super().finished(run, record)
        if time.monotonic() - self._last > _EVERY:
            self._last = time.monotonic()
            self.line(str(self._tally))


class BarProgress(Progress):
    """A spinner with the latest line, and a bar while a sweep runs."""

    def __init__(self, console: Console) -> None:
        self._live = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[told]}"),
            console=console,
            transient=True,
        )
        self._line = self._live.add_task("starting", total=None, told="")
        self._live.start()
        self._bar: TaskID | None = None

    def line(self, text: str) -> None:
        """Show it beside the spinner."""
        self._live.update(self._line, description=escape(printable(text)))

    def decided(self, text: str) -> None:
        """Print it above the bars."""
        self._live.console.print(printable(text), markup=False, highlight=False)

    @contextmanager
    def sweep(self, runs: Sequence[Run], *, n_stored: int) -> Iterator[None]:
        """Show a bar that moves with the work done."""
        with super().sweep(runs, n_stored=n_stored):
            self._bar = self._live.add_task("runs", total=self._tally.cost, told="")
            try:
                yield
            finally:
                self._live.remove_task(self._bar)

    def finished(self, run: Run, record: dict[str, Any]) -> None:
        """Move the bar."""
        super().finished(run, record)
        assert self._bar is not None
        self._live.update(self._bar, completed=self._tally.cost_done, told=str(self._tally))

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


@contextmanager
def chosen_progress(progress: bool | Progress) -> Iterator[Progress]:
    """What a caller's ``progress=`` asks for; an object of theirs is theirs to close."""
    if isinstance(progress, Progress):
        yield progress
    else:
        with show_progress(silent=not check_flag("progress", progress)) as shown:
            yield shown


@contextmanager
def show_progress(*, silent: bool = False) -> Iterator[Progress]:
    """The progress that suits where stderr goes."""
    console = Console(stderr=True)
    shown = (
        Progress() if silent else (BarProgress if console.is_terminal else LineProgress)(console)
    )
    try:
        yield shown
    finally:
        shown.close()


class _Tally:
    """Runs done, the time left by the work they stand for, and the best so far."""

    def __init__(self, runs: Sequence[Run], n_stored: int) -> None:
        self.n_runs, self.n_stored = len(runs), n_stored
        self.cost = sum(run.cost for run in runs)
        self.cost_done, self.n_done = 0.0, 0
        self.troubles: dict[str, int] = {}
        self.best: tuple[float, str] | None = None
        self._began = time.monotonic()

    def add(self, run: Run, record: dict[str, Any]) -> None:
        self.n_done += 1
        self.cost_done += run.cost
        if record["status"] != "done":
            self.troubles[record["status"]] = self.troubles.get(record["status"], 0) + 1
        merit = run.merit(record.get("final") or {})
        if merit is not None and (self.best is None or merit[0] > self.best[0]):
            self.best = merit

    def __str__(self) -> str:
        passed = max(time.monotonic() - self._began, 1e-9)
        parts = [f"{self.n_done} of {self.n_runs} runs"]
        if self.cost_done > 0 and self.n_done < self.n_runs:
            left = passed * (self.cost - self.cost_done) / self.cost_done
            parts.append(f"{_duration(left)} left")
        parts += [f"{count} {status}" for status, count in self.troubles.items()]
        if self.best is not None:
            parts.append(f"best {self.best[1]}")
        return ", ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
