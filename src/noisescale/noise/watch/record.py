"""What watching a training run has shown so far: the same for every framework.

An ecosystem's front hands over one :class:`Batch` an update (:mod:`.reading`), of the whole model
and perhaps of every layer; here they are averaged (:mod:`.ratio`), kept as a history, and asked for
the critical batch size and the noise scale.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from statistics import median_high
from typing import TYPE_CHECKING, Any

from noisescale.checks import check_choice, check_whole
from noisescale.errors import InputError, warn_user
from noisescale.noise.scale import noise_scale
from noisescale.noise.watch.ratio import LARGEST, LATEST, RunningRatio, in_words
from noisescale.noise.watch.reading import Batch
from noisescale.notebook import Displayed
from noisescale.plain import from_plain, to_plain
from noisescale.uncertainty import Estimate

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

    from noisescale.noise.watch.advice import Advice

_RECENT = 101  # readings
_FEW = 20  # readings, of which the last tenth is not told apart
NO_NOISE = "the gradients of a batch's examples are alike within rounding: their tr S is taken as 0"
UNITS = ("example", "token")


class WatchWarning(UserWarning):
    """Something keeps a run from being measured as asked; the run itself goes on."""


@dataclass(frozen=True)
class Row:
    """One measured update: its own readings, the running answer, and that of the last tenth.

    ``l2`` is the critical batch size of plain gradients, where the answer is in another metric.
    """

    update: int
    n_examples: int
    batch_size: float
    gradient_sq_norm: float
    trace: float
    critical_batch_size: float
    low: float
    high: float
    learning_rate: float
    momentum: float
    noise_scale: float
    latest: float = math.nan
    latest_low: float = math.nan
    latest_high: float = math.nan
    dampening: float = 0.0
    l2: float = math.nan
    l2_low: float = math.nan
    l2_high: float = math.nan


def check_rows(rows: Sequence[Row]) -> None:
    """Refuse rows that no update gives: no size, and infinity but for an open interval."""
    for row in rows:
        known = (v for k, v in vars(row).items() if not k.endswith("high") or v < math.inf)
        sized = row.n_examples > 0 and row.batch_size > 0  # NaN is not
        if not sized or any(abs(number) > LARGEST for number in known):
            raise InputError(f"the row of update {row.update} is none that a watch measured.")


@dataclass(frozen=True)
class _State:
    """What ``state_dict`` gives."""

    n_train: int | None
    unit: str
    whole: dict[str, Any]
    layers: dict[str, dict[str, Any]]
    history: list[Row]
    notes: list[str]
    plain: dict[str, Any] | None = None
    counted: str | None = None
    adam: bool = False


def _ratio_of(state: dict[str, Any]) -> RunningRatio:
    """The averages of a state, if an answer can be computed from them."""
    ratio = RunningRatio()
    ratio.load_state_dict(state)
    for known in (ratio.interval(), ratio.latest(), ratio.signal_estimate, ratio.noise_estimate):
        known.to_dict()
    return ratio


def _average_of(rows: Sequence[Row], decay: float | None) -> RunningRatio:
    """The averages of a history's rows."""
    ratio = RunningRatio(decay=decay)
    for row in rows:
        ratio.take(row.gradient_sq_norm, row.trace, row.update)
    return ratio


def _plain(estimate: Estimate) -> dict[str, Any]:
    """By name, an end that is not known None."""
    return estimate.to_dict() | {"high": estimate.high if estimate.has_interval else None}


class NoiseRecord(Displayed):
    """Readings of a run, averaged and kept.

    Args:
        n_train: the size of the training set, for the noise scale.
        decay: None averages over the recent half of the run; 0.99 forgets after about a hundred
            updates, 0 never.
        unit: what batch sizes are counted in, ``"example"`` or ``"token"``.

    Attributes:
        plain: the averages of plain gradients, where the answer is in Adam's metric; else None.
        counted: the same unit and the loss in words, if they are known.
        adam: whether the optimiser divides by roots of second moments.

    >>> record = NoiseRecord(n_train=1000, decay=0.0)
    >>> for k in range(4):
    ...     batch = Batch(1.5 + k % 2, 0.2, 1 / 32, n_examples=32, n_units=32.0)
    ...     taken = record.take(batch, update=k, learning_rate=0.1, momentum=0.0)
    >>> record
    critical batch size 2.44 [1.28, 6.04] examples (4 of 4 updates measured), noise scale 3.025
    """

    def __init__(
        self, *, n_train: int | None = None, decay: float | None = None, unit: str = "example"
    ) -> None:
        self.n_train = None if n_train is None else check_whole("n_train", n_train, at_least=1)
        self.unit = check_choice("unit", unit, UNITS)
        self.whole = RunningRatio(decay=decay)
        self.decay = self.whole.decay
        self.by_layer: dict[str, RunningRatio] = {}
        self.plain: RunningRatio | None = None
        self.counted: str | None = None
        self.adam = False
        self.rows: list[Row] = []
        self._notes: list[str] = []

    def take(
        self,
        batch: Batch,
        *,
        update: int,
        learning_rate: float = math.nan,
        momentum: float = math.nan,
        dampening: float = 0.0,
        layers: Mapping[str, Batch] | None = None,
        plain: Batch | None = None,
    ) -> bool:
        """Take in one update; False if its readings were not finite, which is counted.

        ``plain`` is the same batch by plain gradients, where ``batch`` is in another metric.
        """
        signal, trace = batch.readings
        if not self.whole.take(signal, trace, update):
            return False
        for name, part in (layers or {}).items():
            ratio = self.by_layer.setdefault(name, RunningRatio(decay=self.decay))
            ratio.take(*part.readings, update)
        if trace == 0:
            self.note(NO_NOISE)
        l2 = Estimate(math.nan, low=math.nan, high=math.nan)
        if plain is not None:
            self.plain = self.plain or RunningRatio(decay=self.decay)
            self.plain.take(*plain.readings, update)
            l2 = self.plain.interval()
        estimate, latest = self.interval(), self.latest()
        self.rows.append(
            Row(
                update=update,
                n_examples=batch.n_examples,
                batch_size=batch.n_units,
                gradient_sq_norm=signal,
                trace=trace,
                critical_batch_size=estimate.value,
                low=estimate.low,
                high=estimate.high,
                learning_rate=learning_rate,
                momentum=momentum,
                noise_scale=self.scale(learning_rate, batch.n_examples, momentum, dampening),
                latest=latest.value,
                latest_low=latest.low,
                latest_high=latest.high,
                dampening=dampening,
                l2=l2.value,
                l2_low=l2.low,
                l2_high=l2.high,
            )
        )
        return True

    def average_again(self) -> None:
        """Average the rows anew."""
        self.whole = _average_of(self.rows, self.decay)

    @property
    def critical_batch_size(self) -> float | None:
        """tr S/|G|^2, or None while |G|^2 is not about two standard errors above zero."""
        return self.whole.critical_batch_size

    def interval(self, level: float = 0.95) -> Estimate:
        """The critical batch size over the window; a lower bound alone while not resolved."""
        return self.whole.interval(level)

    def latest(self, level: float = 0.95) -> Estimate:
        """The same over the last tenth of the run so far."""
        return self.whole.latest(level)

    @property
    def window(self) -> tuple[int, int]:
        """The updates that the answer is an average over: from, and up to but without."""
        return self.whole.window

    @property
    def gradient_sq_norm(self) -> Estimate:
        """|G|^2 with its standard error."""
        return self.whole.signal_estimate

    @property
    def trace(self) -> Estimate:
        """Tr S with its standard error."""
        return self.whole.noise_estimate

    @property
    def noise_scale(self) -> float | None:
        """The paper's g = epsilon (1 - d)/(1 - m) (N/B - 1) at the last reading's learning rate.

        m is SGD's momentum and d its dampening. B is the usual batch size, as an epoch's last batch
        may be shorter. None without ``n_train``, a reading, or an optimiser that is plain SGD with
        one momentum.
        """
        if not self.rows:
            return None
        row = self.rows[-1]
        value = row.noise_scale  # of a history that was read from a file, without n_train
        if self.n_train is not None:
            B = self.usual("n_examples")
            value = self.scale(row.learning_rate, B, row.momentum, row.dampening)
        return None if math.isnan(value) else value

    def usual(self, column: str) -> Any:
        """The median of a column over the latest readings."""
        return median_high(getattr(row, column) for row in self.rows[-_RECENT:])

    @property
    def history(self) -> "pd.DataFrame":
        """A row for each measured update: its readings, and the running answer after it."""
        import pandas as pd

        columns = list(Row.__dataclass_fields__)
        return pd.DataFrame([vars(row) for row in self.rows], columns=columns)

    @property
    def layers(self) -> "pd.DataFrame":
        """The same for each layer, by its name: critical batch size, interval, |G|^2, tr S."""
        import pandas as pd

        columns = ["critical_batch_size", "low", "high", "gradient_sq_norm", "trace", "n_updates"]
        rows = {}
        for name, ratio in self.by_layer.items():
            e = ratio.estimate
            rows[name] = (e.value, e.low, e.high, ratio.signal, ratio.noise, ratio.n_updates)
        frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
        return frame.rename_axis("layer")

    def advice(self) -> "Advice":
        """Where the run's batch stands, what others would cost, and what may grow."""
        from noisescale.noise.watch.saved import advice_from

        return advice_from(self)

    def plot(self, where: "Axes | str | Path | None" = None) -> "Axes":
        """Draw the critical batch size through training into ``where``: axes or a file's path."""
        from noisescale.drawing import drawn
        from noisescale.noise.watch.drawing import draw_history

        return drawn(lambda axes: draw_history(self.rows, self.unit, axes), where)

    def _sketched(self) -> bool:
        return bool(self.rows)

    def save(self, path: "Path | str") -> None:
        """Write it into a ``.json`` file, or its history into a ``.csv``: `noisescale report`."""
        from noisescale.noise.watch.saved import save

        save(self, path)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about these numbers, in words."""
        return tuple(self._notes)

    def note(self, sentence: str, *, warn: bool = False, instead: str | None = None) -> None:
        """Keep a note, once, ``instead`` of one that begins so; with ``warn``, as a warning too."""
        if instead is not None:
            self._notes = [note for note in self._notes if not note.startswith(instead)]
        if sentence not in self._notes:
            self._notes.append(sentence)
            if warn:
                warn_user(sentence, WatchWarning)

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain numbers and text."""
        return {
            "n_train": self.n_train,
            "unit": self.unit,
            "whole": self.whole.state_dict(),
            "layers": {name: ratio.state_dict() for name, ratio in self.by_layer.items()},
            "history": [vars(row).copy() for row in self.rows],
            "notes": list(self._notes),
            "plain": None if self.plain is None else self.plain.state_dict(),
            "counted": self.counted,
            "adam": self.adam,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a ``state_dict``."""
        younger = {field.name for field in fields(_State) if field.default is not MISSING}
        wanted = set(self.state_dict()) - younger
        if not isinstance(state, dict) or not wanted <= set(state):
            shown = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise InputError(f"the state must have {sorted(wanted)}, got {shown}.")
        if state["unit"] != self.unit:
            raise InputError(f"the state counts in {state['unit']}s, this watch in {self.unit}s.")
        try:
            mine = {f.name: state[f.name] for f in fields(_State) if f.name in state}
            read: _State = from_plain(_State, to_plain(mine))
            check_rows(read.history)
            if "blocks" in read.whole:
                whole = _ratio_of(read.whole)
                by_layer = {name: _ratio_of(part) for name, part in read.layers.items()}
            else:  # of a version that kept other averages, without the readings of layers
                whole, by_layer = _average_of(read.history, self.decay), {}
            plain = None if read.plain is None else _ratio_of(read.plain)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise InputError(f"the state is not what a watch gave: {error}.") from None
        self.whole, self.by_layer = whole, by_layer
        self.rows, self._notes, self.plain = read.history, read.notes, plain
        self.counted, self.adam = read.counted, read.adam

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain numbers; None for what is not known."""
        return {
            "critical_batch_size": _plain(self.interval()),
            "window": list(self.window),
            "latest": _plain(self.latest()),
            "l2": None if self.plain is None else _plain(self.plain.interval()),
            "gradient_sq_norm": self.gradient_sq_norm.to_dict(),
            "trace": self.trace.to_dict(),
            "noise_scale": self.noise_scale,
            "unit": self.unit,
            "n_train": self.n_train,
            "n_updates": self.whole.n_updates,
            "n_skipped": self.whole.n_skipped,
            "n_spikes": self.whole.n_spikes,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        g = self.noise_scale
        scale = "" if g is None else f", noise scale {g:.4g}"
        latest = ""
        if len(self.rows) >= _FEW:
            since = round((1 - LATEST) * self.window[1])
            latest = f"\n  over the latest updates, from {since:,} on: {in_words(self.latest())}"
        if self.plain is not None:
            latest = f"\n  of plain gradients: {in_words(self.plain.estimate)}{latest}"
        counted = self.counted or f"{self.unit}s"
        return f"{self.whole.described(self.n_seen, counted)}{scale}{latest}"

    @property
    def n_seen(self) -> int:
        """Updates so far, measured or not."""
        return self.whole.last + 1

    def scale(
        self, learning_rate: float, batch_size: int, momentum: float, dampening: float = 0.0
    ) -> float:
        """The paper's g of one update; NaN if it is not known, with a note if it is not defined."""
        effective = learning_rate * (1 - dampening)
        usable = math.isfinite(effective) and effective > 0 and 0 <= momentum < 1
        if self.n_train is None or not usable:
            return math.nan
        if batch_size > self.n_train:
            self.note(
                f"a batch has {batch_size} examples, more than n_train = {self.n_train}: the noise "
                "scale is left out"
            )
            return math.nan
        return noise_scale(effective, batch_size, self.n_train, momentum)
