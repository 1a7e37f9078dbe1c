"""Rules for Adam and AdamW when the batch changes, kappa = B'/B, named by where they come from.

``sde`` (Malladi et al. 2022), from an equation in continuous time:

    epsilon' = sqrt(kappa) epsilon,  1 - beta' = kappa (1 - beta) for both,  eps' = eps/sqrt(kappa)

Both averages must run over many updates. The rule ends at kappa = 1/(1 - beta), where a beta would
reach 0: an average over one update is none. A beta that is 0 to begin with stays 0, which is the
same paper's rule for RMSprop.

``practice``, what projects that train language models do:

    epsilon' = sqrt(kappa) epsilon,  beta1 and eps stay,  beta2' = beta2^kappa within [.95, .9999],

where a beta2 outside of these bounds is its own bound. The learning rate goes so in OLMo-core
(``train/callbacks/batch_size_scheduler.py``) and nanochat (``scripts/base_train.py``), which both
keep the betas, and in marin (``experiments/grug/moe/heuristic.py``), whose bounds of beta2 these
are, and which moves eps by 1/sqrt(kappa) too and the learning rate with the data as well.

``half_life`` (Marek et al. 2025), found on language models: beta2' = beta2^kappa, whose half-life
in tokens stays, and nothing else moves.

Weight decay that is decoupled, as in PyTorch's AdamW (Wang and Aitchison 2024, Bergsma et al.
2025): the parameters average the updates of tau = B/(epsilon lambda D) of a run over D tokens.
Kept, as B and epsilon change,

    lambda' = lambda kappa epsilon/epsilon' D/D',

as in nanochat for its matrices. The D of a new ``n_train`` is counted by ``practice`` alone: the
other two speak of the batch. An L2 penalty in the gradient, as in PyTorch's Adam, is a part of the
cost and stays.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from noisescale.checks import (
    check_choice,
    check_flag,
    check_learning_rate,
    check_number,
    check_whole,
    shown,
)
from noisescale.errors import InputError
from noisescale.noise.batch_recipe import BatchRecipe, kept_warmup
from noisescale.noise.devices import batch_step
from noisescale.noise.scale import SMALL_BATCH
from noisescale.notebook import Displayed

ADAM_RULES = ("sde", "practice", "half_life")
_BETA2 = (0.95, 0.9999)  # what practice keeps it within
_LOWEST = (0.5, 0.9)  # betas below which an average is hardly one
_LONG_JUMP = 8  # times the batch, before which the critical batch size is asked for
_BELOW_ONE = math.nextafter(1.0, 0.0)
_NO_END = 2**62


@dataclass(frozen=True, kw_only=True, repr=False)
class AdamRecipe(BatchRecipe, Displayed):
    """Adam's or AdamW's hyperparameters for a training set of ``n_train`` examples.

    A recipe that was scaled remembers the one that was tuned and is scaled from that, so that two
    steps are one and the way back leads back. What ``dataclasses.replace`` changes is tuned anew.

    Attributes:
        learning_rate: epsilon.
        batch_size: B, of one update over all devices.
        n_train: N; None for a stream whose length is not known.
        betas: decay of the averages of the gradient and of its square.
        eps: what Adam adds to the root of the latter.
        weight_decay: lambda; decoupled if ``decoupled``.
        decoupled: whether this is AdamW.
        epochs, warmup_steps, unit, sequence_length: as in :class:`noisescale.Recipe`.
        notes: what to watch out for, in words; not part of equality.

    >>> import noisescale as ns
    >>> ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6).scaled_to(batch_size=1024)
    AdamRecipe(learning_rate=0.002, batch_size=1024, n_train=1000000, betas=(0.6, 0.996), eps=5e-09)
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decoupled: bool = False
    # Not a field: of a scaled recipe the tuned one, which replace() forgets.
    _tuned: ClassVar["AdamRecipe | None"] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            first, second = self.betas
        except (TypeError, ValueError):
            raise InputError(f"betas must be two numbers, got {shown(self.betas)}.") from None
        betas = tuple(
            check_number(f"betas[{i}]", beta, "in [0, 1)", lambda v: 0 <= v < 1)
            for i, beta in enumerate((first, second))
        )
        object.__setattr__(self, "betas", betas)
        eps = check_number("eps", self.eps, "at least 0", lambda v: v >= 0)
        object.__setattr__(self, "eps", eps)
        object.__setattr__(self, "decoupled", check_flag("decoupled", self.decoupled))

    @property
    def largest_batch_size(self) -> int:
        """How far the sde rule goes: the last batch below B/(1 - beta) of the smaller beta, or N.

        >>> import noisescale as ns
        >>> ns.AdamRecipe(learning_rate=1e-3, batch_size=256, betas=(0.9, 0.95)).largest_batch_size
        2559
        """
        end = (self._tuned or self)._end()
        return end if self.n_train is None else min(end, self.n_train)

    def scaled_to(
        self,
        *,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        n_train: int | None = None,
        rule: str | None = None,
    ) -> "AdamRecipe":
        """Change the batch size, or the learning rate, and everything else by the rule.

        Args:
            batch_size: the new one.
            learning_rate: the new one; the rules by the square root have a batch size for it.
            n_train: no rule for it is known. Alone it is refused; with a ``batch_size`` the rest
                goes by that, and a note says what is not known.
            rule: ``"sde"`` (``"square_root"`` is the same), ``"practice"`` or ``"half_life"``. By
                default the first as far as it goes, and the second beyond; then a note says what
                the others would have. None was right everywhere where they were tried.

        >>> import noisescale as ns
        >>> adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6)
        >>> adam.scaled_to(learning_rate=2e-3).batch_size
        1024
        >>> adam.scaled_to(batch_size=1024, rule="half_life").betas
        (0.9, 0.996005996001)
        >>> adam.scaled_to(batch_size=4096).betas[0]  # by practice: sde ends at 2559
        0.9
        """
        rule = None if rule is None else check_rule(rule)
        if n_train is not None and batch_size is None:
            raise InputError(
                "no rule says how Adam's batch size goes with n_train: the critical batch size was "
                "seen to grow with the data (Zhang et al. 2024), so measure it "
                "(noisescale.gradient_noise), or tune around the old one; with a new batch size "
                "of your choice the rest can be said."
            )
        if (batch_size is None) == (learning_rate is None):
            raise InputError("one of batch_size and learning_rate is to change: give one.")
        tuned = self._tuned or self
        rounded: tuple[str, ...] = ()
        if batch_size is None:
            assert learning_rate is not None
            if rule == "half_life":
                raise InputError(
                    "the half-life rule keeps the learning rate, whatever the batch: it needs the "
                    "new batch size, or choose rule='sde' or rule='practice'."
                )
            rate = check_learning_rate(learning_rate)
            batch_size, rounded = tuned._batch_size_at(rate, self.n_train)
        batch_size = check_whole("batch_size", batch_size, at_least=1)
        n_train = self.n_train if n_train is None else n_train
        if rule is not None:
            scaled = tuned._by(rule, batch_size, n_train)
        else:
            scaled = next(iter(tuned._by_each_rule(batch_size, n_train).values()))
        return scaled._noting(*rounded)

    def side_by_side(
        self, *, batch_size: int, n_train: int | None = None
    ) -> dict[str, "AdamRecipe"]:
        """What each rule says of a new batch size, of those that reach it; the first says how far
        they are apart.

        >>> import noisescale as ns
        >>> adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6)
        >>> [(name, r.learning_rate) for name, r in adam.side_by_side(batch_size=1024).items()]
        [('sde', 0.002), ('practice', 0.002), ('half_life', 0.001)]
        """
        batch_size = check_whole("batch_size", batch_size, at_least=1)
        n_train = self.n_train if n_train is None else n_train
        return (self._tuned or self)._by_each_rule(batch_size, n_train)

    def _by_each_rule(self, batch_size: int, n_train: int | None) -> dict[str, "AdamRecipe"]:
        """Of the tuned recipe, the rule that is taken by default first."""
        rules = ADAM_RULES if batch_size <= self._end() else ADAM_RULES[1:]
        made = {rule: self._by(rule, batch_size, n_train) for rule in rules}
        (name, first), *others = made.items()
        if all(other == first for _, other in others):
            return made
        apart = "; ".join(f"{other} has {r._in_words()}" for other, r in others)
        beyond = "" if name == "sde" else f" (sde ends at batch_size {self._end()})"
        half, twice = (f"{share * first.learning_rate:.4g}" for share in (0.5, 2))
        made[name] = first._noting(
            f"this is rule='{name}'{beyond}; {apart}; none of them was right everywhere where "
            f"they were tried, so let three short runs decide: at half this learning rate, at it, "
            f"and at twice it ({half}, {first.learning_rate:.4g}, {twice})"
        )
        return made

    def _by(self, rule: str, batch_size: int, n_train: int | None) -> "AdamRecipe":
        """The tuned recipe, which this is, with another batch by ``rule``."""
        kappa = batch_size / self.batch_size
        root = 1.0 if rule == "half_life" else math.sqrt(kappa)
        beta1, beta2 = self.betas
        if rule == "sde":
            if batch_size > self._end():
                raise InputError(
                    f"the sde rule (Malladi et al. 2022) has no betas for a batch_size of "
                    f"{batch_size}: 1 - beta grows with the batch, and {self._end()} is the "
                    "largest at which both betas stay above 0; give no more than that, or "
                    "rule='practice' or rule='half_life'."
                )
            beta1, beta2 = (_shortened(beta, kappa) for beta in self.betas)
        else:
            beta2 = min(math.pow(beta2, kappa), _BELOW_ONE)
        if rule == "practice":
            low, high = min(_BETA2[0], self.betas[1]), max(_BETA2[1], self.betas[1])
            beta2 = min(max(beta2, low), high)
        decay = kappa / root if self.decoupled else 1.0
        if rule == "practice" and self.decoupled:
            decay /= self._growth(n_train)
        scaled = replace(
            self,
            n_train=n_train,
            learning_rate=self.learning_rate * root,
            batch_size=batch_size,
            betas=(beta1, beta2),
            eps=self.eps / root if rule == "sde" else self.eps,
            weight_decay=self.weight_decay * decay,
            warmup_steps=kept_warmup(
                self.warmup_steps, (self.batch_size, batch_size), 1 / (1 - beta1)
            ),
            notes=(),
        )
        object.__setattr__(scaled, "_tuned", self)
        return scaled._noting(*self._what_to_watch(scaled, rule))

    def _noting(self, *notes: str) -> "AdamRecipe":
        """The same with more notes, and scaled from the same."""
        noted = replace(self, notes=(*notes, *self.notes))
        object.__setattr__(noted, "_tuned", self._tuned)
        return noted

    def _end(self) -> int:
        """The largest batch that keeps the sde rule's betas above 0, in whole sequences."""
        averages = [beta for beta in self.betas if beta > 0]
        if not averages:
            return _NO_END
        limit = self.batch_size / (1 - min(averages))
        below = math.ceil(limit * (1 - 1e-12)) - 1  # 2,559 of 2,560, which doubles miss by 5e-13
        step = batch_step(None, self.unit, self.sequence_length)
        return max(self.batch_size, min(below, _NO_END) // step * step)

    def _batch_size_at(
        self, learning_rate: float, n_train: int | None
    ) -> tuple[int, tuple[str, ...]]:
        """By the square root, and a note where it was rounded."""
        wanted = (learning_rate / self.learning_rate) ** 2 * self.batch_size
        step = 1 if self.unit == "examples" else self.sequence_length or 1
        most = math.inf if n_train is None else n_train + 0.5
        if not 0.5 * step < wanted < min(most, 2**62):
            raise InputError(
                f"a learning_rate of {learning_rate:g} would need a batch_size of {wanted:.3g}, "
                f"outside {step} to {n_train}: change less."
            )
        batch_size = step * round(wanted / step)
        if batch_size == wanted:
            return batch_size, ()
        return batch_size, (f"the batch size was rounded from {wanted:.5g} to {batch_size}",)

    def _what_to_watch(self, scaled: "AdamRecipe", rule: str) -> list[str]:
        """A sentence for each thing about ``scaled`` that its rule does not promise."""
        notes = []
        if scaled.batch_size >= _LONG_JUMP * self.batch_size:
            notes.append(
                f"the batch is {scaled.batch_size / self.batch_size:.3g} times as large: measure "
                "the critical batch size first (noisescale.torch.watch in a run, or "
                "noisescale.gradient_noise), because beyond it a larger batch gains little by any "
                "rule"
            )
        for k, (old, new) in enumerate(zip(self.betas, scaled.betas, strict=True)):
            if new < min(_LOWEST[k], old):
                n = f"{1 / (1 - new):.3g}"
                notes.append(
                    f"beta{k + 1} = {new:.3g} averages over {n} update{'s' if n != '1' else ''}, "
                    f"where the tuned {old:.4g} averages over {1 / (1 - old):.3g}"
                )
        n_train = scaled.n_train
        if n_train is not None and scaled.batch_size > SMALL_BATCH * n_train:
            notes.append(
                f"a batch of {scaled.batch_size} is {scaled.batch_size / n_train:.0%} of the "
                "training set: no longer small"
            )
        decays = self.decoupled and self.weight_decay > 0
        with_data = decays and rule == "practice" and self._growth(n_train) != 1
        if n_train != self.n_train:
            besides = "but for the weight decay " if with_data else ""
            notes.append(
                f"what else moves with the data is not known for Adam: {besides}everything here "
                "goes with the batch size alone, so search around the learning rate and the weight "
                "decay"
            )
        if with_data or (decays and scaled.batch_size != self.batch_size):
            run = (
                f"for D {self.unit} that grow with n_train, in as many epochs,"
                if with_data
                else f"for as many {self.unit} D"
            )
            notes.append(
                f"the weight decay keeps tau = B/(learning rate x weight decay x D), {run} and the "
                "same model: with others the best one moves by itself"
            )
        return notes

    def _growth(self, n_train: int | None) -> float:
        """D'/D with as many epochs as before; 1 where one of them is not known."""
        return n_train / self.n_train if n_train and self.n_train else 1.0

    def _in_words(self) -> str:
        """What the rules disagree about."""
        beta1, beta2 = self.betas
        decays = self.decoupled and self.weight_decay > 0
        decay = f", weight decay {self.weight_decay:.4g}" if decays else ""
        return f"learning rate {self.learning_rate:.4g}, betas ({beta1:.6g}, {beta2:.6g}){decay}"

    def said(self) -> tuple[str, ...]:
        """What was said of the tuned recipe when it was made."""
        return BatchRecipe.said(self._tuned or self)

    def to_dict(self) -> dict[str, Any]:
        """The quantities and the notes; None for what is not known."""
        return {
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "n_train": self.n_train,
            "betas": list(self.betas),
            "eps": self.eps,
            "decoupled": self.decoupled,
            **self._shared(),
            "steps_per_epoch": None if self.n_train is None else self.steps_per_epoch,
            "steps": None if self.epochs is None else self.steps,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        beta1, beta2 = self.betas
        decoupled = ", decoupled=True" if self.decoupled else ""
        return (
            f"AdamRecipe(learning_rate={self.learning_rate:.6g}, batch_size={self.batch_size}, "
            f"n_train={self.n_train}, betas=({beta1:.6g}, {beta2:.6g}), eps={self.eps:.6g}"
            f"{decoupled}{self._shown()})"
        )


def check_rule(rule: str) -> str:
    """The rule's name by its source: ``"square_root"`` is sde's other name."""
    if isinstance(rule, str) and rule == "square_root":
        return "sde"
    return check_choice("rule", rule, ADAM_RULES)


def _shortened(beta: float, kappa: float) -> float:
    """1 - kappa (1 - beta), written so that kappa = 1 gives beta itself; 0 stays 0."""
    return min(beta - (kappa - 1) * (1 - beta), _BELOW_ONE) if beta > 0 else 0.0
