"""What the callbacks of training frameworks share: settings, the start of a watch, what is logged.

A callback takes the settings of :func:`noisescale.torch.watch` by keyword, begins a watch when
training starts, says when an update is about to be made if the optimiser's own step cannot (it may
run the backward pass inside), logs the answer under its own prefix, and says it in a line at the
end, where the framework's users look.
"""

import inspect
import math
from typing import Any

from noisescale.errors import InputError
from noisescale.noise.watch.record import NoiseRecord
from noisescale.torch.watched import UnwatchableError
from noisescale.torch.watching import Watch, watch

_SETTINGS = {
    name: parameter.default
    for name, parameter in inspect.signature(watch).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
}


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """All settings of a watch, those that are given and the rest; refused if there is no such."""
    if unknown := sorted(set(given) - set(_SETTINGS)):
        raise InputError(
            f"there is no setting {unknown[0]!r}: give those of noisescale.torch.watch, "
            f"{', '.join(_SETTINGS)}."
        )
    return _SETTINGS | given


def begin(
    model: Any,
    optimizer: Any,
    chosen: dict[str, Any],
    *,
    dataset: Any,
    hooked: bool,
    state: dict[str, Any] | None = None,
) -> NoiseRecord:
    """A watch of ``model``; the size of the training set is the data set's, if it is not chosen.

    A model that cannot be watched (FSDP) is trained all the same: a warning says why, and the
    record stays empty.

    Args:
        model: what is called, wrappers and all.
        optimizer: of PyTorch, without wrappers.
        chosen: as :func:`settings` returns them.
        dataset: that the run trains on, which may know its length.
        hooked: whether the optimiser's own step takes the readings.
        state: of an earlier watch, to go on from; of one that never began it holds nothing.
    """
    n_train = chosen["n_train"]
    if n_train is None:
        try:
            n_train = len(dataset) or None
        except (TypeError, NotImplementedError):  # a stream, whose __len__ may exist and raise
            n_train = None
    try:
        made = Watch(model, optimizer, **(chosen | {"n_train": n_train}), hooked=hooked)
    except UnwatchableError as error:
        empty = NoiseRecord(n_train=n_train, decay=chosen["decay"], unit=chosen["unit"])
        empty.note(str(error), warn=True)
        return empty
    if state is not None and "n_updates" in state:
        made.load_state_dict(state)
    return made


def scalars(record: NoiseRecord, prefix: str) -> dict[str, float]:
    """The answer as numbers to log; what is not known or not finite is left out."""
    estimate = record.interval()
    values = {
        "critical_batch_size": estimate.value,
        "critical_batch_size_low": estimate.low if estimate.low > 0 else math.nan,
        "critical_batch_size_high": estimate.high,
        "critical_batch_size_latest": record.latest().value,
        "critical_batch_size_l2": math.nan if record.plain is None else record.plain.estimate.value,
        "gradient_sq_norm": record.gradient_sq_norm.value,
        "trace": record.trace.value,
        "noise_scale": math.nan if record.noise_scale is None else record.noise_scale,
    }
    return {f"{prefix}{name}": value for name, value in values.items() if math.isfinite(value)}


def summary(record: NoiseRecord) -> str | None:
    """The answer in a line, for the end of a run; None if nothing was measured."""
    return f"noise scale: {NoiseRecord.__repr__(record).splitlines()[0]}" if record.rows else None
