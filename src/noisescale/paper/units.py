"""The learning-rate unit: what the paper's "epsilon = 1" may have meant.

The paper trains a 784-800-10 network at learning rate 1 and momentum 0.9 and says that batches of
30 train and batches of 10 or less do not. This section tries that with the usual mean
cross-entropy and with the cost also averaged over the 10 classes, a tenth of the learning rate.
"""

from dataclasses import dataclass

from matplotlib.figure import Figure

from noisescale.drawing import house_style, to_svg
from noisescale.paper.batches import LEARNING_RATE, MOMENTUM, N_TRAIN, plain_plan, size_of
from noisescale.paper.runs import Runs
from noisescale.paper.section import Context, Findings, Measured, Measurement, Picture, Section
from noisescale.paper.style import draw_band
from noisescale.uncertainty import mean_of


@dataclass(frozen=True)
class _Case:
    label: str
    cost_convention: str
    batch_size: int


_CASES = (
    _Case("cost per example and class, B = 30", "per_class", 30),
    _Case("cost per example and class, B = 3", "per_class", 3),
    _Case("cost per example, B = 30", "per_example", 30),
)


@dataclass(frozen=True)
class Data(Measured):
    """Training in both units."""

    runs: Runs

    @property
    def cases(self) -> dict[str, Runs]:
        """The runs of each case, by its label."""
        return {
            case.label: self.runs.where(
                cost_convention=case.cost_convention, batch_size=case.batch_size
            )
            for case in _CASES
        }


def measure(context: Context) -> Data:
    """Train the paper's network in both units."""
    plans = [plain_plan(context, [case.batch_size], case.cost_convention) for case in _CASES]
    return Data(context.at, context.runs([run for plan in plans for run in plan]))


def judge(data: Data) -> Findings:
    """No claim of the paper's; what either unit gives."""
    how = (
        f"{data.at.seeds} seeds, {size_of(data.at).steps:,} updates, ε = {LEARNING_RATE:g}, "
        f"m = {MOMENTUM:g}, N = {N_TRAIN:,}"
    )
    measurements = tuple(
        Measurement(f"test accuracy, {label}", _describe(these), how)
        for label, these in data.cases.items()
    )
    return Findings(
        statement=(
            "The paper trains at learning rate 1 and momentum 0.9 and finds that batches of 30 "
            "train while batches of about 10 or less do not. By its update equation the learning "
            "rate multiplies the gradient averaged over the examples of a batch, as is usual. The "
            "same training is run here in that unit, and with the cross-entropy averaged over the "
            "ten classes as well. Wherever this report quotes the paper's "
            "learning rates it uses the second: the training cost, penalty included, divided by "
            "the number of classes, which is exactly a change of unit by a factor of ten. "
            "Cross-entropies are always reported undivided, in nats per example."
        ),
        measurements=measurements,
    )


def _describe(runs: Runs) -> str:
    text = str(mean_of(runs.final("test_accuracy")))
    if diverged := int((runs.frame["status"] == "diverged").sum()):
        text += f", {diverged} diverged and counted as chance"
    return text


def draw(data: Data) -> tuple[Picture, ...]:
    """Test accuracy during training, by case."""
    cases = data.cases
    with house_style():
        figure = Figure(figsize=(7.5, 4.2))
        axes = figure.add_subplot()
        for colour, (label, these) in enumerate(cases.items()):
            draw_band(axes, *these.curve("test_accuracy"), label, colour)
        axes.set_xscale("symlog", linthresh=1)
        axes.set(xlabel="gradient updates", ylabel="test accuracy", ylim=(0, 1), xlim=(0, None))
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1))
        svg = to_svg(figure)
    picture = Picture(
        name="units",
        svg=svg,
        caption="Test accuracy during training at the paper's learning rate, in two units. "
        "Lines are means over seeds, bands reach from the lowest to the highest.",
        alt="Line chart of test accuracy against gradient updates for three settings: "
        + "; ".join(
            f"{label} ends near {these.final('test_accuracy').mean():.2f}"
            for label, these in cases.items()
        )
        + ".",
    )
    return (picture,)


SECTION = Section("units", "The learning-rate unit", measure, judge, draw)
