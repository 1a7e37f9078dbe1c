"""What to watch out for in a recipe of SGD, in words."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from noisescale.noise.scale import SMALL_BATCH

if TYPE_CHECKING:
    from noisescale.noise.recipe import Recipe

# Beyond this effective learning rate, epsilon/(1 - m) for a cost averaged over examples, the
# paper's network lost accuracy at every batch size (figure 5: its epsilon of 3 at m = 0.9).
SEEN_TO_HOLD = 3.0

ADVICE = (
    "this rule is for SGD, with or without momentum: Adam and AdamW have rules of their own "
    "(AdamRecipe; --optimizer adamw)",
)
MEASURED = "give epochs or steps, and no rule, for what was measured"
PAPERS_RULE = (
    "keeping the noise scale as N changes is the paper's rule, but on its network the best batch "
    f"size grew more slowly than N: {MEASURED}"
)


def what_to_watch(recipe: "Recipe") -> Iterator[str]:
    """A sentence for each thing about ``recipe`` that the rules do not promise."""
    if recipe.n_train is not None and recipe.batch_size > SMALL_BATCH * recipe.n_train:
        yield (
            f"a batch of {recipe.batch_size} is {recipe.batch_size / recipe.n_train:.0%} of the "
            "training set: no longer small, so the linear and the exact rule part, and the noise "
            "that is left may not be what limits training"
        )
    if recipe.effective_learning_rate > SEEN_TO_HOLD * (1 + 1e-9):  # 0.3/(1 - 0.9) is 3
        yield (
            f"an effective learning rate of {recipe.effective_learning_rate:.3g} is beyond the "
            f"{SEEN_TO_HOLD:g} up to which the rule was seen to hold on the paper's network: try a "
            "short run first, with a warm-up"
        )
    memory = 1 / (1 - recipe.momentum)
    epochs = 10 if recipe.epochs is None else recipe.epochs
    run = recipe.steps_per_epoch * epochs
    if memory > 0.1 * run:  # never of a stream, whose run is not known
        yield (
            f"at momentum {recipe.momentum:.4g} the accumulator needs about {memory:.0f} updates "
            f"to forget, more than a tenth of the {run:.0f} in {epochs:g} epochs: accuracy may drop"
        )


def and_then(grown: "Recipe", moved: "Recipe") -> str:
    """How a second change follows that of the data."""
    changed = [
        f"{name} {getattr(moved, name):.4g}"
        for name in ("batch_size", "learning_rate", "momentum")
        if getattr(moved, name) != getattr(grown, name)
    ]
    return (
        f"from the law's B = {grown.batch_size} the linear rule then leads to "
        f"{' and '.join(changed) or 'no other'}"
    )
