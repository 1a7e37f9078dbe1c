"""What a training run gives back."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from noisescale.notebook import Displayed
from noisescale.training.evaluation import Evaluation
from noisescale.training.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

Status = Literal["done", "diverged"]


class Waypoint(NamedTuple):
    """How far a run has come: ``step`` of ``steps``, and its latest evaluation if there was one."""

    step: int
    steps: int
    latest: Evaluation | None


@dataclass(frozen=True, eq=False, repr=False)
class TrainResult(Displayed):
    """A finished run.

    Attributes:
        params: the parameters after the last step.
        history: the evaluations in order of their steps; all values finite.
        status: ``"done"``, or ``"diverged"`` if the cost or the parameters stopped being finite.
        steps_done: updates made.
        diverged_at: the first step known to be beyond repair, None for a run that is done.
        settings: the hyperparameters, as given.
    """

    params: Any
    history: tuple[Evaluation, ...]
    status: Status
    steps_done: int
    diverged_at: int | None
    settings: Settings

    @property
    def final(self) -> Evaluation | None:
        """The evaluation after the last step; None if the run diverged before it."""
        return self.history[-1] if self.status == "done" else None

    def plot(self, where: "Axes | str | Path | None" = None) -> "Axes":
        """Draw accuracies, or else cross-entropies, through training: into axes or a file."""
        from noisescale.drawing import drawn

        return drawn(self._draw, where)

    def _draw(self, axes: "Axes") -> None:
        classified = any(not math.isnan(at.train_accuracy) for at in self.history)
        metric = "accuracy" if classified else "cross_entropy"
        steps = [at.step for at in self.history]
        for part in ("train", "test"):
            values = [getattr(at, f"{part}_{metric}") for at in self.history]
            if not all(map(math.isnan, values)):
                axes.plot(steps, values, ".-", label=part)
        axes.set(xlabel="updates", ylabel=metric.replace("_", "-"))
        axes.legend(fontsize="small")

    def _headline(self) -> str:
        return f"TrainResult: {self.status} after {self.steps_done:,} steps"

    def _sketched(self) -> bool:
        return len(self.history) > 1

    def to_dict(self) -> dict[str, Any]:
        """Everything but the parameters, as plain lists and numbers; None where not measured."""
        columns = {
            name: [None if math.isnan(value) else value for value in column]
            for name, column in zip(
                Evaluation._fields, zip(*self.history, strict=True), strict=False
            )
        }
        return {
            "status": self.status,
            "steps_done": self.steps_done,
            "diverged_at": self.diverged_at,
            "settings": self.settings.to_dict(),
            "history": columns,
        }

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.settings.to_dict().items())
        lines = [f"TrainResult: {self.status} after {self.steps_done:,} steps ({settings})"]
        if self.diverged_at is not None:
            lines.append(f"  not finite from step {self.diverged_at:,} on")
        if self.history:
            last = self.history[-1]
            lines.append(
                f"  step {last.step:,}: train accuracy {last.train_accuracy:.4f}, "
                f"cross-entropy {last.train_cross_entropy:.4f}; "
                f"test accuracy {last.test_accuracy:.4f}, "
                f"cross-entropy {last.test_cross_entropy:.4f}"
            )
        return "\n".join(lines)
