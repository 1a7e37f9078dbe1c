"""A recipe's batch size with more data: two branches, and what one point leaves open.

On the paper's network the best batch size follows ``batch_law.py``,

    B^q = A^q + C^q,    A = a epsilon/(1 - m) N^alpha,    C = c N/T

with T updates: A is the noise's branch, C that of the epochs, of which the network needs about c
to fit its training set. Of another task a and c are not known, and one tuned recipe, B at N and T,
does not tell them both. So c is taken from the paper's network and a from the recipe,

    A = (B^q - C^q)^(1/q),

which holds for the recipe itself. Where C >= B, the recipe fits in fewer epochs than c: then its
own B T/N stands for c. The interval spans what either branch alone would say, and those of alpha
and c. With as many epochs as before, T goes as N/B, and B as N^alpha whatever a and c are. With so
few that c may be as many, B has no upper end: it grows without limit as they come near c, and below
c there is no best one.
"""

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from noisescale.noise.batch_law import PAPER_LAW, BatchSizeLaw

if TYPE_CHECKING:
    from noisescale.noise.recipe import Recipe

# Of the paper's network, with 95 % intervals.
POWER = PAPER_LAW.power  # alpha
EPOCHS = PAPER_LAW.epochs  # c
SHARPNESS = PAPER_LAW.sharpness  # q

OWN_LENGTH = "give the recipe its own"
_BINDS = {
    "noise": "the noise binds: the batch grows with a low power of N, and with the learning rate",
    "epochs": (
        "the epochs bind: with so few updates the batch must be large enough to see the data often "
        "enough, so it grows as N over the number of updates"
    ),
}


@dataclass(frozen=True)
class BatchChoice:
    """A batch size, not rounded, its interval, and the branch that binds it.

    ``high`` is infinite where the epochs may be too few for any batch.
    """

    batch_size: float
    low: float
    high: float
    branch: str  # "noise" or "epochs"
    needed: float = math.nan  # epochs to fit: c, or those of the recipe if they are fewer
    has_answer: bool = True  # False where the epochs do not suffice, and the noise's is given


def batch_for_more_data(
    batch_size: float,
    *,
    n_train: tuple[int, int],
    epochs: float,
    to_epochs: float | None = None,
    to_steps: float | None = None,
) -> BatchChoice:
    """The batch at ``n_train[1]``, for ``to_epochs`` or ``to_steps``, of one tuned at the first.

    ``epochs`` is the length of the tuned run.
    """
    N, N_new = n_train

    def answer(alpha: float, c: float) -> tuple[float, str, bool]:
        own = min(c, epochs)  # a recipe that fits in fewer epochs knows better than c
        A = batch_size * (1 - (own / epochs) ** SHARPNESS) ** (1 / SHARPNESS)
        A_new = A * (N_new / N) ** alpha
        if to_steps is not None:
            C_new = own * N_new / to_steps
            B = (A_new**SHARPNESS + C_new**SHARPNESS) ** (1 / SHARPNESS)
            return B, "noise" if A_new >= C_new else "epochs", True
        assert to_epochs is not None
        alone = batch_size * (N_new / N) ** alpha
        if own < to_epochs and own < epochs:
            share = (1 - (own / to_epochs) ** SHARPNESS) ** (1 / SHARPNESS)
            return A_new / share, "noise" if 2 * share**SHARPNESS >= 1 else "epochs", True
        if to_epochs >= epochs * (1 - 1e-9):  # as many as before: A and C go alike
            return alone, "noise", True
        return math.inf, "noise", False  # fewer than it takes

    B, branch, has_answer = answer(POWER.value, EPOCHS.value)
    if not has_answer:
        B = batch_size * (N_new / N) ** POWER.value  # noise alone has a say
    possible = [
        answer(alpha, c)[0]
        for alpha, c in product((POWER.low, POWER.high), (EPOCHS.low, EPOCHS.high))
    ]
    possible += [batch_size * (N_new / N) ** alpha for alpha in (POWER.low, POWER.high)]
    if to_steps is not None:
        steps = epochs * N / batch_size
        possible.append(batch_size * (N_new / N) * (steps / to_steps))  # epochs alone
    possible.append(B)
    needed = min(EPOCHS.value, epochs)
    return BatchChoice(B, min(possible), max(possible), branch, needed, has_answer)


def in_brackets(low: float, high: float, digits: str) -> str:
    """An interval, and a word if it has no upper end."""
    end = f"{high:{digits}}" if math.isfinite(high) else "no upper end"
    return f"[{low:{digits}}, {end}]"


def choose_batch(
    recipe: "Recipe", n_train: int, length: dict[str, Any], law: BatchSizeLaw | None
) -> tuple[BatchChoice, list[str]]:
    """The batch of ``recipe`` with ``n_train`` examples, and why; ``length`` has epochs or steps.

    By ``law``, if the user has fitted one; else by this recipe as the one point of the paper's.
    """
    if law is None:
        choice, notes = _by_one_point(recipe, n_train, length)
    else:
        told = law.predict(
            learning_rate=recipe.learning_rate * (1 - recipe.dampening),
            momentum=recipe.momentum,
            n_train=n_train,
            **length,
        )
        choice = BatchChoice(
            told.value, told.low, told.high, told.branch, has_answer=told.has_answer
        )
        notes = [f"by your law B = {told.summary}", *told.notes]
    return choice, [*notes, _BINDS[choice.branch]] if choice.has_answer else notes


def _by_one_point(
    recipe: "Recipe", n_train: int, length: dict[str, Any]
) -> tuple[BatchChoice, list[str]]:
    assert recipe.n_train is not None
    epochs, notes = recipe.epochs, []
    if epochs is None:  # the same length, in the same terms
        if "epochs" in length:
            epochs, terms = length["epochs"], "epochs"
        else:
            epochs, terms = length["steps"] * recipe.batch_size / recipe.n_train, "updates"
        notes.append(
            f"the tuned run is taken to have had as many {terms}, because its epochs are not "
            f"known: {OWN_LENGTH}"
        )
    choice = batch_for_more_data(
        recipe.batch_size,
        n_train=(recipe.n_train, n_train),
        epochs=epochs,
        to_epochs=length.get("epochs"),
        to_steps=length.get("steps"),
    )
    notes.insert(
        0,
        f"B = {choice.batch_size:.3g} by the law of the paper's network, with this recipe as its "
        f"one point; {in_brackets(choice.low, choice.high, '.3g')} is what one point leaves open",
    )
    if not choice.has_answer:
        notes.append(
            f"{length['epochs']:g} epochs may be too few to fit {n_train} {recipe.unit}, whatever "
            f"the batch: the law has no answer below about {choice.needed:.3g}, where its batch "
            "grows without limit, and this is where the noise alone would put it"
        )
    elif not math.isfinite(choice.high):
        notes.append(
            f"{length['epochs']:g} epochs are hardly more than the {choice.needed:.3g} that the "
            f"paper's network takes to fit, which may be {EPOCHS.high:.3g}: with fewer than it "
            "takes no batch is best, so the interval has no upper end"
        )
    return choice, notes
