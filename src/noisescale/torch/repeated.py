"""What the calls of one backward pass show when they are made again (:mod:`.replay`).

That is all of a compiled module, and the parameters without rules of any other. Several calls of a
module in one pass are of the same examples: their gradients add up before they are squared. Where
examples are differentiated alone, their sum must be the batch's own gradient; if it is not, what
was taken for examples is none, or the loss depends on more than these outputs.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from noisescale.torch.calls import Calls
from noisescale.torch.entry import Entry, Seen
from noisescale.torch.example_norms import Metric
from noisescale.torch.loss_weight import OutputGradients
from noisescale.torch.part import Part
from noisescale.torch.replay import again, at_outputs
from noisescale.torch.troubles import COMPILED_BATCH_NORM, INSIDE, UNSUMMED
from noisescale.torch.watched import has_dropout, is_coupled

_TOLERANCE = 0.1  # of the batch's gradient: rounding in half precision is far below
_VANISHING = 1e-3  # of all of it: so little may be off in any case


def repeated(
    entry: Entry,
    *,
    part: Part,
    leave_out: bool,
    metric: Metric | None,
    outputs: OutputGradients,
    entered: bool,
    alone: bool,
) -> tuple[dict[str, Tensor], str | None]:
    """sum_i |g_i|^2 by the names of parameters in the model, and what kept it from being measured.

    Args:
        entry: whose calls were seen in this pass.
        part: which examples to take.
        leave_out: whether parameters without rules are left out.
        metric: weights of the squared entries, by name in the model.
        outputs: that look at the gradients at the outputs.
        entered: whether the module was called at all for this pass.
        alone: whether parameters hold the gradient of this pass, and of this process, alone.
    """
    rest = {} if leave_out else entry.rest
    calls = list({id(seen): seen for seen in entry.calls if seen.call is not None}.values())
    if not calls:
        free = dict(entry.module.named_parameters())
        if entered and any(free[name].grad is not None for name in rest):
            entry.leave_out(rest.values(), "no gradient was seen at their module's output")
        return {}, None
    trouble = None
    for seen in calls:
        trouble = trouble or _find(entry, seen, outputs)
    if entry.compiled and is_coupled(entry.module):
        trouble = COMPILED_BATCH_NORM
    if trouble is not None:
        return {}, trouble
    n = calls[0].n
    call = Calls(tuple(seen.call for seen in calls if seen.call is not None))
    b = torch.cat([seen.b.reshape(n, -1) for seen in calls if seen.b is not None], dim=1)
    chosen, scale = part.of(n)
    if chosen is not None:
        call, b = call.some(chosen), b[chosen]
    plan = entry.plan if entry.compiled else None
    try:
        made = again(entry.module, plan, rest, call, b, metric)
    except ValueError:  # of examples that do not lie along the first axis
        raise
    except Exception as error:  # whatever a user's module may raise when it is called like this
        if entry.compiled or entry.summed:
            raise
        entry.leave_out(rest.values(), f"their module's call could not be made again: {error}")
        return {}, None
    if made.sums and chosen is None and alone and not entry.summed:
        if not has_dropout(entry.module) and not _add_up(entry, made.sums):
            return {}, UNSUMMED
        entry.summed = True
    return {name: square * scale for name, square in made.squares.items()}, None


def _find(entry: Entry, seen: Seen, outputs: OutputGradients) -> str | None:
    """The gradient at the outputs of a call whose loss was made inside of it."""
    if seen.slope is None or seen.call is None:
        return None
    found = at_outputs(entry.module, seen.call, seen.slope)
    if found is None:
        return INSIDE
    logits, b = found
    trouble = outputs.look(seen.n, b, logits)
    seen.b = b if seen.b is None else seen.b + b
    return trouble


def _add_up(entry: Entry, sums: Mapping[str, Tensor]) -> bool:
    """Whether gradients of examples alone make that of the batch."""
    wrong = rest = whole = 0.0
    for local, p in entry.module.named_parameters():
        g = None if p.grad is None else p.grad.to_dense()
        size = 0.0 if g is None else float(g.square().sum())
        whole += size
        if local in entry.rest:
            total = sums[entry.rest[local]]
            rest += size
            wrong += float((total if g is None else g - total).square().sum())
    # Numbers that are not finite are nobody's fault; nor is rounding, where gradients vanish.
    return not wrong > max(_TOLERANCE**2 * rest, _VANISHING**2 * whole)
