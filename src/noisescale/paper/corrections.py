"""Where the paper is silent, contradicts itself or does not reproduce, as found here.

In the order of importance. The numbers that carry a correction come from the data: it names the
claims, readings and measurements that have them, and the report puts these beside it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from noisescale.paper.claims import in_words
from noisescale.paper.section import Measurement


@dataclass(frozen=True)
class Number:
    """What carries a correction: the ``label`` of a place in the report, and what stands there."""

    target: str
    label: str
    text: str


@dataclass(frozen=True)
class Correction:
    """What the paper should have said.

    ``shown_by`` are ids of claims and readings, ``measured`` measurements of a section: its id, how
    their names begin, and a part of how they were obtained.
    """

    title: str
    text: str
    shown_by: tuple[str, ...] = ()
    measured: tuple[str, str, str] | None = None

    def numbers(
        self,
        judged: Iterable[Mapping[str, Any]],
        measurements: Mapping[str, Iterable[Measurement]],
    ) -> list[Number]:
        """From verdicts, as in claims.json, and from measurements by section."""
        primary = {row["id"]: row for row in judged if row["primary"] and row["measured"]}
        found = [
            Number(name, name, f"{row['verdict']}, {in_words(row['measured'])}")
            for name in self.shown_by
            if (row := primary.get(name)) is not None
        ]
        if self.measured is not None:
            section, what, how = self.measured
            found += [
                Number(f"section-{section}", row.what, f"{row.value} ({row.how})")
                for row in measurements.get(section, ())
                if row.what.startswith(what) and how in row.how
            ]
        return found


CORRECTIONS = (
    Correction(
        "The unit of the learning rate",
        "By the paper's update equation ε multiplies the gradient of the cost averaged over the "
        "batch. So taken, its network does not train at learning rate 1, momentum 0.9 and B = 30. "
        "With the cost averaged over the ten classes as well, which is a tenth of the learning "
        "rate, batches train and fail where the paper says. That is the convention of this report "
        "wherever it quotes the paper's ε.",
        measured=("units", "test accuracy", ""),
    ),
    Correction(
        "The best batch size and the training set",
        "It is said to be proportional to the number of training images from 20,000 on. Measured, "
        "it goes with a lower power of it, and g at the peak is not the same for all training "
        "sets. It moves with the number of updates too: a batch must be so large that the images "
        "are seen often enough.",
        shown_by=("C20", "R20", "C45"),
    ),
    Correction(
        "The penalty's share in the cost",
        "With L2 of 0.1 figure 8 depends on whether the penalty is divided by the number of "
        "classes like the cross-entropy: divided, it is too weak to do what the figure shows; "
        "undivided, it takes most of the gap.",
        shown_by=("C23", "R23", "C25", "R25", "C39", "R39"),
    ),
    Correction(
        "Footnote 1",
        "It says that at a fixed batch size the best learning rate is proportional to batch size "
        "and training-set size. By the paper's own g = ε(N/B - 1)/(1 - m) it is proportional to "
        "B/N, so that a larger training set would want a smaller ε. Over training sets neither is "
        "seen.",
        shown_by=("C33", "R33"),
        measured=("5", "slope of log ε_opt", "against N"),
    ),
    Correction(
        "The noise scale at large batches",
        "With momentum the paper has g ≈ εN/(B(1 - m)). For batches drawn without replacement it "
        "is N/B - 1 there too, as without momentum, and the noise vanishes at B = N.",
        shown_by=("C28",),
    ),
    Correction(
        "The sum over eigenvalues",
        "The evidence sums ln(λ_i/λ) over eigenvalues of the cost's Hessian that are at least λ. "
        "With a prior on every parameter these are λ + h_i with h_i the curvature of the "
        "likelihood, so the sum runs over h_i at or above zero, and an unpenalised bias, whose "
        "prior is not proper, has no evidence.",
    ),
    Correction(
        "Balanced test sets",
        "5,000 zeros and 5,000 ones are more than MNIST's test file holds (980 and 1,135). Here "
        "they are drawn from all 70,000 images, apart from those trained on.",
    ),
    Correction(
        "Random labels",
        "E is said to be positive for random labels at every prior. Where the prior is strong it "
        "is within a nat of zero, and its sign is chance.",
        shown_by=("C08",),
    ),
    Correction(
        "Figure 7's training time",
        "It keeps 10,000 updates while the effective time goes as 1/(1 - m): low momenta train "
        "less. Figure 5 compensates, with 10,000/ε updates.",
        shown_by=("C22",),
    ),
    Correction(
        "Smaller things",
        "Appendix C says figure 7b and means 9b; appendix D writes λ for damping, the rest for L2.",
    ),
)
