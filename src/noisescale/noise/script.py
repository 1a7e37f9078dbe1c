"""A recipe as the lines of a training script: PyTorch, Hugging Face's Trainer, Lightning.

The names that the lines use are those that scripts have: ``model``, ``train_set``, ``loss``.
Numbers have twelve digits, so that a recipe read back is the same. What the recipe notes comes
first, as comments: the lines are pasted without the answer that they stood in.
"""

from textwrap import wrap

from noisescale.checks import check_choice
from noisescale.noise.adam import AdamRecipe
from noisescale.noise.batch_recipe import BatchRecipe
from noisescale.noise.devices import Devices, number_of_devices
from noisescale.noise.recipe import Recipe

TRAINERS = ("pytorch", "transformers", "lightning")
_WIDTH = 100  # of a comment


def lines(recipe: BatchRecipe, trainer: str, devices: Devices) -> str:
    """The lines for ``trainer``, of a batch that is shared out as ``devices`` say."""
    check_choice("trainer", trainer, TRAINERS)
    made = {"pytorch": _pytorch, "transformers": _transformers, "lightning": _lightning}
    return "\n".join([*_comments(recipe), *made[trainer](recipe, devices)])


def _comments(recipe: BatchRecipe) -> list[str]:
    """A note a comment; wrapped, so that no line end inside of a note ends the comment.

    What was said of the tuned recipe when it was made (amsgrad, a scheduler) holds of a scaled one.
    """
    return [
        line
        for note in dict.fromkeys((*recipe.notes, *recipe.said()))
        for line in wrap(
            note, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False
        )
    ]


def _pytorch(recipe: BatchRecipe, devices: Devices) -> list[str]:
    steps = devices.gradient_accumulation_steps
    # Every process must see its own part of the data; Lightning and the Trainer see to it.
    order = "sampler=DistributedSampler(train_set)" if devices.world_size > 1 else "shuffle=True"
    text = [
        _loader(devices, order),
        f"optimizer = {_optimizer(recipe, 'model.parameters()')}",
        *_warmup(recipe, "warmup = "),
    ]
    if recipe.warmup_steps:
        text.append("# warmup.step() after every optimizer.step()")
    if steps > 1:
        text.append(f"accumulation_steps = {steps}")
        text.append(
            "# (loss / accumulation_steps).backward(), and optimizer.step() every "
            "accumulation_steps batches"
        )
    if recipe.epochs is not None:
        name = "num_epochs" if _by_epochs(recipe) else "max_steps"
        text.append(f"{name} = {_length(recipe)}  # {_the_other(recipe)}")
    return text


def _transformers(recipe: BatchRecipe, devices: Devices) -> list[str]:
    steps, world = devices.gradient_accumulation_steps, devices.world_size
    total = f"  # x {number_of_devices(world)}: {devices.batch_size} examples an update"
    text = [
        "training_args = TrainingArguments(",
        f"    per_device_train_batch_size={devices.per_device_batch_size},",
        f"    gradient_accumulation_steps={steps},{total}",
        f"    learning_rate={_number(recipe.learning_rate)},",
    ]
    if isinstance(recipe, AdamRecipe):
        text.append('    optim="adamw_torch",')
        text += [
            f"    adam_beta{k}={_number(beta)}," for k, beta in enumerate(recipe.betas, start=1)
        ]
        text.append(f"    adam_epsilon={_number(recipe.eps)},")
        if recipe.weight_decay and not recipe.decoupled:
            text.append(
                "    # the Trainer has no Adam with an L2 penalty: give it optimizers=("
                f"{_optimizer(recipe, 'model.parameters()')}, None)"
            )
        else:
            text.append(f"    weight_decay={_number(recipe.weight_decay)},")
    elif isinstance(recipe, Recipe):
        text.append('    optim="sgd",')
        options = [f"momentum={_number(recipe.momentum)}"] if recipe.momentum else []
        options += [f"dampening={_number(recipe.dampening)}"] if recipe.dampening else []
        options += ["nesterov=True"] if recipe.nesterov else []
        if options:
            joined = ",".join(options)
            text.append(f'    optim_args="{joined}",  # reaches SGD from transformers 5 on')
        if recipe.weight_decay:
            text.append(f"    weight_decay={_number(recipe.weight_decay)},")
    if recipe.warmup_steps:
        text.append(f"    warmup_steps={recipe.warmup_steps},")
    if recipe.length_in == "steps":
        text.append(f"    max_steps={_length(recipe)},  # {_the_other(recipe)}")
    elif recipe.epochs is not None:
        text.append(f"    num_train_epochs={_number(recipe.epochs)},")
    return [*text, ")"]


def _lightning(recipe: BatchRecipe, devices: Devices) -> list[str]:
    options = [f"accumulate_grad_batches={devices.gradient_accumulation_steps}"]
    if devices.world_size > 1:
        options.insert(0, f"devices={devices.world_size}")
    remark = ""
    if recipe.epochs is not None:
        options.append(f"max_{'epochs' if _by_epochs(recipe) else 'steps'}={_length(recipe)}")
        remark = "" if _by_epochs(recipe) else f"  # {_the_other(recipe)}"
    made = _optimizer(recipe, "self.parameters()")
    text = [
        _loader(devices),
        f"trainer = Trainer({', '.join(options)}){remark}",
        "# in the LightningModule:",
        "def configure_optimizers(self):",
    ]
    if not recipe.warmup_steps:
        return [*text, f"    return {made}"]
    (warmup,) = _warmup(recipe, "")
    return [
        *text,
        f"    optimizer = {made}",
        f"    warmup = {warmup}",
        '    return [optimizer], [{"scheduler": warmup, "interval": "step"}]',
    ]


def _by_epochs(recipe: BatchRecipe) -> bool:
    """Whether the length is a whole number of epochs, and was not asked for in updates."""
    return recipe.length_in == "epochs" and float(recipe.epochs or 0).is_integer()


def _length(recipe: BatchRecipe) -> int:
    """Epochs, if they are whole; else updates."""
    if _by_epochs(recipe):
        return int(recipe.epochs or 0)
    return max(1, round(recipe.steps))


def _the_other(recipe: BatchRecipe) -> str:
    """The same length in updates, if it is in epochs; else in epochs."""
    if not _by_epochs(recipe):
        least = "" if recipe.steps > 0.5 else "less than one in "
        return f"updates: {least}{recipe.epochs:.4g} epochs"
    about = "" if recipe.steps_per_epoch.is_integer() else "about "
    return f"{about}{recipe.steps:.0f} updates"


def _loader(devices: Devices, order: str = "shuffle=True") -> str:
    size = f"batch_size={devices.per_device_batch_size}"
    steps, world = devices.gradient_accumulation_steps, devices.world_size
    parts = [f"x {steps} accumulated"] * (steps > 1) + [f"x {world} devices"] * (world > 1)
    remark = f"  # {' '.join(parts)}: {devices.batch_size} an update" if parts else ""
    return f"loader = DataLoader(train_set, {size}, {order}, drop_last=True){remark}"


def _optimizer(recipe: BatchRecipe, parameters: str) -> str:
    options = [f"lr={_number(recipe.learning_rate)}"]
    if isinstance(recipe, AdamRecipe):
        name = "AdamW" if recipe.decoupled else "Adam"
        beta1, beta2 = map(_number, recipe.betas)
        options += [f"betas=({beta1}, {beta2})", f"eps={_number(recipe.eps)}"]
        if recipe.decoupled or recipe.weight_decay:
            options.append(f"weight_decay={_number(recipe.weight_decay)}")
    else:
        assert isinstance(recipe, Recipe)
        name = "SGD"
        options += [f"momentum={_number(recipe.momentum)}"] if recipe.momentum else []
        options += [f"dampening={_number(recipe.dampening)}"] if recipe.dampening else []
        options += ["nesterov=True"] if recipe.nesterov else []
        options += [f"weight_decay={_number(recipe.weight_decay)}"] if recipe.weight_decay else []
    return f"torch.optim.{name}({parameters}, {', '.join(options)})"


def _warmup(recipe: BatchRecipe, assigned: str) -> list[str]:
    """A linear warm-up, to be stepped after every update."""
    n = recipe.warmup_steps
    if not n:
        return []
    scheduler = "torch.optim.lr_scheduler.LinearLR"
    return [
        f"{assigned}{scheduler}(optimizer, start_factor={_number(1 / (n + 1))}, total_iters={n})"
    ]


def _number(value: float) -> str:
    return f"{value:.12g}"
