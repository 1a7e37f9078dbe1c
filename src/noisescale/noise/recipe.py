"""Recipes of SGD that keep their noise scale when something else must change.

With kept = epsilon N/(B (1 - m)) (``"linear"``) or g = epsilon (N/B - 1)/(1 - m) (``"exact"``), and
L(B) = N/B or N/B - 1, one of these moves:

    epsilon = kept (1 - m)/L(B),    m = 1 - epsilon L(B)/kept,
    B = N e/kept  or  N e/(kept + e)    with  e = epsilon/(1 - m).

Nothing here needs JAX.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from noisescale.checks import (
    check_batch_size,
    check_choice,
    check_learning_rate,
    check_momentum,
    check_number,
    check_whole,
)
from noisescale.errors import InputError
from noisescale.noise.scale import (
    RULES,
    SMALL_BATCH,
    batch_size_keeping,
    loudness,
    noise_scale,
)
from noisescale.noise.schedule import BatchSchedule, batch_schedule
from noisescale.uncertainty import Estimate

# What moves, if the user does not choose, when a quantity changes.
_PARTNER = {
    "batch_size": "learning_rate",
    "n_train": "batch_size",
    "learning_rate": "batch_size",
    "momentum": "batch_size",
}
_MOVABLE = ("learning_rate", "momentum", "batch_size")

# Beyond this effective learning rate, epsilon/(1 - m) for a cost averaged over examples, the
# paper's network lost accuracy at every batch size (figure 5: its epsilon of 3 at m = 0.9).
SEEN_TO_HOLD = 3.0
# The power of N that the best batch size went with, with its 95 % interval (figure 6: the paper's
# network, 20,000 to 60,000 images). The paper has 1.
SEEN_POWER = Estimate(0.57, low=0.36, high=0.78)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Learning rate, batch size and momentum for a training set of ``n_train`` examples.

    Attributes:
        learning_rate: epsilon, for a cost averaged over the examples of a batch.
        batch_size: B.
        n_train: N.
        momentum: m, as in TensorFlow and PyTorch without dampening.
        epochs: the length of the run, if it is to be judged against the momentum's memory.
        notes: what to watch out for, in words; not part of equality.

    >>> import noisescale as ns
    >>> recipe = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000, momentum=0.9)
    >>> round(recipe.noise_scale, 4)
    194.3125
    >>> recipe.scaled_to(batch_size=1024, via="momentum")
    Recipe(learning_rate=0.1, batch_size=1024, n_train=50000, momentum=0.975)
    """

    learning_rate: float
    batch_size: int
    n_train: int
    momentum: float = 0.0
    epochs: float | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        n_train = check_whole("n_train", self.n_train, at_least=1)
        checked: dict[str, Any] = {
            "learning_rate": check_learning_rate(self.learning_rate),
            "batch_size": check_batch_size(self.batch_size, n_train),
            "n_train": n_train,
            "momentum": check_momentum(self.momentum),
        }
        if self.epochs is not None:
            checked["epochs"] = check_number("epochs", self.epochs, "above 0", lambda v: v > 0)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "notes", tuple(dict.fromkeys((*self.notes, *self._own_notes()))))

    @property
    def noise_scale(self) -> float:
        """The paper's g."""
        return noise_scale(self.learning_rate, self.batch_size, self.n_train, self.momentum)

    @property
    def effective_learning_rate(self) -> float:
        """epsilon/(1 - m): how far a constant gradient moves the parameters in a step."""
        return self.learning_rate / (1 - self.momentum)

    @property
    def steps_per_epoch(self) -> float:
        """N/B."""
        return self.n_train / self.batch_size

    def kept(self, rule: str) -> float:
        """What ``rule`` keeps: epsilon N/(B (1 - m)) or g."""
        return self.effective_learning_rate * loudness(self.batch_size, self.n_train, rule)

    def scaled_to(
        self,
        *,
        batch_size: int | None = None,
        n_train: int | None = None,
        learning_rate: float | None = None,
        momentum: float | None = None,
        via: str | None = None,
        rule: str = "linear",
    ) -> "Recipe":
        """Change one quantity, and move another so that the noise scale stays as it is.

        Args:
            batch_size, n_train, learning_rate, momentum: the one that changes, and its new value.
            via: the one that moves: ``"learning_rate"``, ``"momentum"`` or ``"batch_size"``. By
                default a new batch size moves the learning rate, anything else the batch size.
            rule: ``"linear"`` keeps epsilon N/(B (1 - m)), which is what practitioners expect;
                ``"exact"`` keeps g itself.

        >>> import noisescale as ns
        >>> ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000).scaled_to(batch_size=1024)
        Recipe(learning_rate=0.4, batch_size=1024, n_train=50000, momentum=0)
        """
        asked = {
            "batch_size": batch_size,
            "n_train": n_train,
            "learning_rate": learning_rate,
            "momentum": momentum,
        }
        changes = {name: value for name, value in asked.items() if value is not None}
        if len(changes) != 1:
            several = " and ".join(changes) or "nothing"
            raise InputError(
                f"scaled_to changes one of {', '.join(asked)}, and was asked for {several}."
            )
        (changed,) = changes
        via = _PARTNER[changed] if via is None else check_choice("via", via, _MOVABLE)
        check_choice("rule", rule, RULES)
        if via == changed:
            raise InputError(f"{changed} cannot both be set and be moved: choose another via.")
        if via == "batch_size":  # it is about to move, and need not fit the old way
            size = self.n_train if n_train is None else check_whole("n_train", n_train, at_least=1)
            changes["batch_size"] = min(self.batch_size, size)
        target = replace(self, notes=(), **changes)  # type: ignore[arg-type]
        moved = self._moved(target, via, rule)
        if target.n_train == self.n_train:
            return moved
        warning = (
            "keeping the noise scale as N changes is the paper's rule, but on its network the best "
            f"batch size was seen to grow only as N^{SEEN_POWER}: search around this one"
        )
        return replace(moved, notes=(warning, *moved.notes))

    def as_batch_schedule(
        self,
        learning_rates: Iterable[tuple[float, float]],
        *,
        max_batch_size: int | None = None,
        rule: str = "linear",
    ) -> BatchSchedule:
        """Turn a decaying learning rate into a growing batch (Smith et al. 2017).

        Args:
            learning_rates: pairs (epoch at which it begins, learning rate).
            max_batch_size: what memory allows; N/10 caps the batch in any case, and what the batch
                cannot take is left to the learning rate.
            rule: as in :meth:`scaled_to`.

        >>> import noisescale as ns
        >>> recipe = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000)
        >>> recipe.as_batch_schedule([(0, 0.1), (9, 0.02)]).stages[1].batch_size
        1280
        """
        return batch_schedule(
            learning_rates,
            batch_size=self.batch_size,
            n_train=self.n_train,
            momentum=self.momentum,
            max_batch_size=max_batch_size,
            rule=rule,
        )

    def _moved(self, target: "Recipe", via: str, rule: str) -> "Recipe":
        """``target`` with ``via`` moved so that it keeps what this recipe's ``rule`` keeps."""
        kept = self.kept(rule)
        if rule == "exact" and target.batch_size == target.n_train and via != "batch_size":
            raise InputError(
                f"a batch of all {target.n_train} examples has no noise, so the exact rule cannot "
                "keep any: choose a smaller batch_size."
            )
        if kept == 0:
            raise InputError(
                f"this recipe's batch is all of its {self.n_train} examples: it has no noise for "
                "the exact rule to keep."
            )
        if via == "batch_size":
            return self._with_batch_size(target, kept, rule)
        L = loudness(target.batch_size, target.n_train, rule)
        if via == "learning_rate":
            learning_rate = kept * (1 - target.momentum) / L
            moved = replace(target, learning_rate=learning_rate, notes=_ADVICE)
        else:
            momentum = 1 - target.learning_rate * L / kept
            if -1e-12 < momentum < 0:  # rounding, on the way back to none
                momentum = 0.0
            if momentum < 0:
                raise InputError(
                    f"keeping the noise scale by momentum would need a momentum of {momentum:.3g}, "
                    "below 0: lower the learning_rate as well, or choose via='learning_rate'."
                )
            moved = replace(target, momentum=momentum, notes=_ADVICE)
        return moved

    def _with_batch_size(self, target: "Recipe", kept: float, rule: str) -> "Recipe":
        wanted = batch_size_keeping(kept, target.effective_learning_rate, target.n_train, rule)
        size = round(wanted)
        if not 1 <= size <= target.n_train:
            raise InputError(
                f"keeping the noise scale would need a batch_size of {wanted:.3g}, outside 1 to "
                f"{target.n_train}: change less, or let another quantity move."
            )
        moved = replace(target, batch_size=size, notes=_ADVICE)
        off = moved.kept(rule) / kept - 1
        if abs(off) < 1e-12:
            return moved
        rounding = (
            f"rounding the batch size from {wanted:.5g} to {size} makes the noise scale "
            f"{abs(off):.2g} of itself {'larger' if off > 0 else 'smaller'}"
        )
        return replace(moved, notes=(rounding, *moved.notes))

    def _own_notes(self) -> Iterable[str]:
        if self.batch_size > SMALL_BATCH * self.n_train:
            yield (
                f"a batch of {self.batch_size} is {self.batch_size / self.n_train:.0%} of the "
                "training set: no longer small, so the linear and the exact rule part, and the "
                "noise that is left may not be what limits training"
            )
        if self.effective_learning_rate > SEEN_TO_HOLD * (1 + 1e-9):  # 0.3/(1 - 0.9) is 3
            yield (
                f"an effective learning rate of {self.effective_learning_rate:.3g} is beyond the "
                f"{SEEN_TO_HOLD:g} up to which the rule was seen to hold on the paper's network: "
                "try a short run first, with a warm-up"
            )
        memory = 1 / (1 - self.momentum)
        epochs = 10 if self.epochs is None else self.epochs
        run = self.steps_per_epoch * epochs
        if memory > 0.1 * run:
            yield (
                f"at momentum {self.momentum:.4g} the accumulator needs about {memory:.0f} updates "
                f"to forget, more than a tenth of the {run:.0f} in {epochs:g} epochs: accuracy may "
                "drop"
            )

    def to_dict(self) -> dict[str, Any]:
        """The quantities, what follows from them, and the notes."""
        return {
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "n_train": self.n_train,
            "momentum": self.momentum,
            "epochs": self.epochs,
            "noise_scale": self.noise_scale,
            "effective_learning_rate": self.effective_learning_rate,
            "steps_per_epoch": self.steps_per_epoch,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        length = "" if self.epochs is None else f", epochs={self.epochs:g}"
        return (
            f"Recipe(learning_rate={self.learning_rate:.6g}, batch_size={self.batch_size}, "
            f"n_train={self.n_train}, momentum={self.momentum:.6g}{length})"
        )


_ADVICE = (
    "this rule is for SGD, with or without momentum: Adam and its kin want the square-root rule of "
    "AdamRecipe",
)
