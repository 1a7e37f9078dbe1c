"""What may keep an update from being measured, in sentences, and what measures it better."""

TWICE = (
    "backward ran twice through one forward pass (or torch.autograd.grad went through it as well): "
    "such updates are not measured"
)
STALE = (
    "gradients were there before an update's first backward pass: call zero_grad() after every "
    "step, or such updates cannot be measured"
)
CHANGED = (
    "gradients changed between the backward passes of one update (clipped, scaled or added to): "
    "such updates are not measured"
)
UNLIKE = "one backward pass went through batches of different sizes: such updates are not measured"
COMPILED_BATCH_NORM = (
    "batch normalisation in training mode couples the examples of a batch, and inside a compiled "
    "model their contributions cannot be seen: nothing is measured; watch the model uncompiled"
)
NO_METRIC = (
    "norm='adam' needs the second moments of Adam, AdamW, NAdam or SparseAdam, and this optimiser "
    "has none, or divides by something else: nothing is measured"
)
ADAM = "norm='adam' measures the noise in the metric of this optimiser's step"
NOTHING = (
    "no gradient reached the layers of the watched model: watch the model that is trained, and if "
    "it is compiled, what torch.compile returned"
)

INSIDE = (
    "the loss is computed inside the compiled model, and not from the outputs that it returns: "
    "nothing is measured; let the model return its logits as well"
)
UNSUMMED = (
    "gradients of examples alone do not add up to the batch's: examples must lie along the first "
    "axis of the model's inputs, and the loss must be of its first output; nothing is measured"
)


def failure(error: Exception) -> str:
    """Of measuring itself."""
    reason = (str(error).strip().splitlines() or [""])[0][:200]
    return f"measuring failed, {type(error).__name__}: {reason}"
