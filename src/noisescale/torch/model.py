"""A module as a function of its flat free parameters: outputs at any point, in either precision.

Its twins are copies in evaluation mode, in float64 and float32; the module itself is not touched.
While a twin runs, attention takes the backend that differentiates in every mode (``math``), unless
one reverse pass is all that follows; the fused fast path of ``nn.TransformerEncoderLayer`` is off,
and tensors that the module makes itself (``torch.zeros`` for a first state) have its precision; all
is as before afterwards.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence

from noisescale.errors import InputError
from noisescale.evidence.problem import Array
from noisescale.evidence.select import Select, chosen_of
from noisescale.torch.batches import mapped
from noisescale.torch.packed import PlainPacking
from noisescale.torch.tensors import to_numpy

PRECISIONS = ("float64", "float32")
PARALLEL = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


class TorchModel:
    """The twins of a module and the names of its free parameters, in order."""

    def __init__(self, module: torch.nn.Module, select: Select | None = None) -> None:
        module = unwrapped(module)
        if isinstance(module, torch.jit.ScriptModule):
            raise InputError(
                "a ScriptModule cannot be differentiated here: give what it was made of."
            )
        if lazy := [name for name, p in module.named_parameters() if is_lazy(p)]:
            raise InputError(
                f"the module's parameter {lazy[0]} has no shape yet: call the module once."
            )
        self.twins = {name: _twin(module, getattr(torch, name)) for name in PRECISIONS}
        free = {name: p for name, p in self.twins["float64"].named_parameters() if p.requires_grad}
        if not free:
            raise InputError("the module has no parameters that require gradients.")
        if select is not None:
            chosen = chosen_of(select, list(free), ".")
            free = {name: free[name] for name, own in zip(list(free), chosen, strict=True) if own}
        for twin in self.twins.values():  # torch.func needs no graph of their own
            twin.requires_grad_(False)
        self.device = next(iter(free.values())).device
        self.params: dict[str, Array] = {name: to_numpy(p) for name, p in sorted(free.items())}
        self.shapes = {name: value.shape for name, value in self.params.items()}
        self._sizes = [value.size for value in self.params.values()]
        self._recurrent = any(isinstance(m, torch.nn.RNNBase) for m in module.modules())

    def __call__(
        self, precision: str, w: torch.Tensor, inputs: Any, *, plainly: bool = False
    ) -> torch.Tensor:
        """The outputs of a batch at flat parameters ``w``, in the shape the module gives them.

        ``plainly`` if they will be differentiated once, backwards, as in training: attention may
        then take its fused kernels.
        """
        parts = torch.split(w, self._sizes)
        values = {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
        args, kwargs = arguments(inputs)
        try:
            with (
                differentiable(recurrent=self._recurrent, plainly=plainly),
                _default(precision),
            ):
                returned = functional_call(self.twins[precision], values, args, kwargs)
        except InputError:  # which says what to do
            raise
        except _OWN as error:
            raise InputError(_sentence(error, self.twins[precision], precision)) from error
        return logits_of(returned)

    def tensor(self, values: Array, precision: str) -> torch.Tensor:
        """A tensor on the module's device."""
        return torch.as_tensor(values, dtype=getattr(torch, precision), device=self.device)


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside of wrappers that spread it over devices or compile it."""
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"module must be a torch.nn.Module, got {type(module).__name__}.")
    while True:
        if isinstance(module, PARALLEL):
            module = module.module
        elif hasattr(module, "_orig_mod"):  # torch.compile's
            module = module._orig_mod
        else:
            return module


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a module is called with these inputs."""
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def logits_of(returned: Any) -> torch.Tensor:
    """The outputs among what a module returned: itself, ``logits``, or the first of several."""
    if isinstance(returned, torch.Tensor):
        return returned
    if isinstance(getattr(returned, "logits", None), torch.Tensor):
        return returned.logits
    if isinstance(returned, Mapping):
        tensors = [value for value in returned.values() if isinstance(value, torch.Tensor)]
        chosen = returned.get("logits", tensors[0] if len(tensors) == 1 else None)
        if isinstance(chosen, torch.Tensor):
            return chosen
        raise InputError(
            f"the module returns a dict of {', '.join(map(str, returned))}: name its outputs "
            "'logits', or wrap it in a module that returns them alone."
        )
    if isinstance(returned, (tuple, list)) and returned and isinstance(returned[0], torch.Tensor):
        return returned[0]
    raise InputError(
        f"the module must return a tensor, a dict or an object with logits, or a tuple that begins "
        f"with them, but returns a {type(returned).__name__}."
    )


@contextmanager
def differentiable(*, recurrent: bool = False, plainly: bool = False) -> Iterator[None]:
    """Choose the kernels that differentiate in every mode, and restore the choice.

    ``plainly`` leaves attention its own, which differentiate once, backwards.
    """
    fast_path, onednn = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled
    torch.backends.mha.set_fastpath_enabled(False)
    if recurrent:  # oneDNN's recurrent layers have neither forward nor batched derivatives
        torch.backends.mkldnn.enabled = False
    try:
        attention = nullcontext() if plainly else sdpa_kernel(SDPBackend.MATH)
        with attention, PlainPacking() if recurrent else nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        torch.backends.mkldnn.enabled = onednn


@contextmanager
def _default(precision: str) -> Iterator[None]:
    """Let tensors that a module makes without naming a type have this precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, precision))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _twin(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A copy in evaluation mode and this precision."""
    twin = _copied(module).to(dtype).eval()
    for part in twin.modules():
        for name, value in list(vars(part).items()):  # constants that are not registered as buffers
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                setattr(part, name, value.to(dtype))
        if isinstance(part, torch.nn.RNNBase):
            part.register_forward_pre_hook(_begin_by_examples, with_kwargs=True)
        if isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag):
            part.sparse = False  # sparse gradients have few operations
        if type(part) is torch.nn.Embedding and part.padding_idx is not None:
            part.forward = partial(_embed, part, part.weight.detach().clone())
    _as_plain_as_possible(twin)
    return twin


def _as_plain_as_possible(twin: torch.nn.Module) -> None:
    """A model of transformers without a cache of keys, without checkpoints, with torch's attention.

    Its own attention ("eager") takes a softmax in float32, where float64's lowest number, its mask,
    is infinite: a sequence padded on the left would be NaN.
    """
    if hasattr(getattr(twin, "config", None), "use_cache"):
        twin.config.use_cache = False
    if callable(choose := getattr(twin, "set_attn_implementation", None)):
        try:
            choose("sdpa")
        except (ValueError, ImportError):  # an architecture that has none
            choose("eager")
    for part in twin.modules():
        if getattr(part, "gradient_checkpointing", False) is True:
            part.gradient_checkpointing = False
        # With checkpoints come hooks that have inputs require gradients.
        for key, hook in list(part._forward_hooks.items()):
            if "make_inputs_require_grads" in getattr(hook, "__qualname__", ""):
                del part._forward_hooks[key]


def _copied(module: torch.nn.Module) -> torch.nn.Module:
    """A copy; results that the module keeps of earlier calls are cut off from their graphs."""
    kept = [v for part in module.modules() for v in vars(part).values()]
    results = [v for v in kept if isinstance(v, torch.Tensor) and not v.is_leaf]
    return copy.deepcopy(module, {id(result): result.detach() for result in results})


def _embed(module: torch.nn.Embedding, fixed: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """An embedding whose row for padding is constant, as training leaves it.

    PyTorch's own has no gradient for that row in reverse mode, and one in forward mode.
    """
    padding = torch.arange(len(fixed), device=fixed.device) == module.padding_idx
    weight = torch.where(padding[:, None], fixed, module.weight)
    return torch.nn.functional.embedding(tokens, weight)


def _begin_by_examples(
    module: torch.nn.RNNBase, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The first state of a recurrent layer, made from its inputs: zeros, or what the module gives.

    A state that is the same for all examples under ``vmap``, as PyTorch's own zeros are, cannot
    take in place what differs between them. Packed sequences are refused: PyTorch reads their
    sizes where ``torch.func`` lets nothing be read.
    """
    if args and isinstance(args[0], PackedSequence):
        raise InputError(
            "packed sequences have no derivatives by single examples: give the recurrent layer "
            "padded sequences and mask in forward, or take what it makes of them as the data of "
            "the layers after it."
        )
    x, given = args[0] if args else None, args[1] if len(args) > 1 else kwargs.get("hx")
    if not isinstance(x, torch.Tensor) or x.ndim != 3:
        return None
    if given is not None:
        state = mapped(lambda s: s + x.new_zeros(s.shape), given)
    else:
        n = x.shape[0] if module.batch_first else x.shape[1]
        rows = module.num_layers * (2 if module.bidirectional else 1)
        state = x.new_zeros(rows, n, module.proj_size or module.hidden_size)
        if module.mode == "LSTM":
            state = (state, x.new_zeros(rows, n, module.hidden_size))
    return (x, state), {name: value for name, value in kwargs.items() if name != "hx"}


_OWN = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, AssertionError)


def _sentence(error: Exception, module: torch.nn.Module, precision: str) -> str:
    """Which submodule failed, and how."""
    paths = {id(part): path for path, part in module.named_modules()}
    inner, trace = "the module", error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module):
            path = paths.get(id(owner))
            inner = type(owner).__name__ + (f" ({path})" if path else "")
        trace = trace.tb_next
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    if "dtype" in reason or "scalar type" in reason:
        way_out = "make tensors of its inputs' type in it, as x.new_zeros(...) does"
    else:
        way_out = "change its inputs, replace that layer, or freeze what comes up to it and give "
        way_out += "its outputs as data"
    return (
        f"{inner} fails on these inputs in evaluation mode and {precision}, with derivatives by "
        f"torch.func: {reason[:200]}; {way_out}."
    )
