"""Per-example gradients of a convolution's weight, with or without the patches that it sees.

A convolution is a product with patches, a_t the numbers that place t sees:

    y_t = W a_t,   gradient of an example: sum_t b_t a_t'

Patches are many times the inputs (a 5 x 5 kernel's are 25 times), so that writing them down takes
longer than multiplying them. The gradients of n examples also are the weight gradient of *one*
convolution that has n times as many groups, an example in each; and the product of every gradient
with a direction V is that of b with the convolution of the inputs by V. Neither makes patches.
"""

from collections.abc import Iterator
from functools import cached_property

from torch import Tensor, nn
from torch.nn import functional

from noisescale.torch.factors import Outer

# A convolution of many groups is slow with few input channels, and where gradients have many more
# numbers than outputs have places.
_FEW_CHANNELS, _MANY_NUMBERS = 4, 256


class Convolved(Outer):
    """Gradients (g, o, i) of the weight of Conv1d or Conv2d; patches are made if asked for."""

    layer: nn.Module
    x: Tensor  # (n, channels, ...), the layer's inputs
    z: Tensor  # (n, k, channels, ...), gradients at its outputs

    def __init__(self, layer: nn.Module, x: Tensor, z: Tensor) -> None:
        n, k = z.shape[:2]
        by_group = z.reshape(n, k, layer.groups, -1, z.shape[3:].numel())
        own = {"layer": layer, "x": x, "z": z, "b": by_group.mT, "transposed": False}
        for name, value in own.items():
            object.__setattr__(self, name, value)

    @cached_property
    def a(self) -> Tensor:
        """The patches (n, g, T, i)."""
        return patches(self.layer, self.x)

    @property
    def width(self) -> int:
        """Numbers of a patch."""
        return int(self.layer.weight.shape[1:].numel())

    @property
    def numbers(self) -> int:
        """Without patches."""
        return int(self.x[0].numel() + self.z[0].numel())

    def gradients(self, room: Tensor | None = None) -> Tensor:
        """By one convolution where that is faster and there is one gradient an example."""
        n, k = self.z.shape[:2]
        if k == 1 and is_one_convolution(self.layer, self.z.shape[3:].numel()):
            return weight_gradients(self.layer, self.x, self.z[:, 0]).reshape(n, 1, -1)
        return super().gradients(room)

    def inputs(self, positions: int) -> Iterator[Tensor]:
        """Few patches at a time, which stay in the processor's cache."""
        for x in self.x.split(max(1, positions // self.b.shape[3])):
            yield patches(self.layer, x)

    def along(self, direction: Tensor) -> Tensor:
        """Output gradients with what the direction, as a weight, makes of the inputs."""
        layer = self.layer
        if not _is_plain(layer):
            return super().along(direction)
        convolution = functional.conv1d if self.x.ndim == 3 else functional.conv2d
        pushed = convolution(
            self.x,
            direction.reshape(layer.weight.shape),
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=layer.groups,
        )
        return (self.z * pushed[:, None]).flatten(2).sum(dim=2)

    def of_examples(self, n: int) -> Outer:
        """As it is, or from patches."""
        return self if len(self.x) == n else super().of_examples(n)

    def chosen(self, examples: slice) -> "Convolved":
        """Views."""
        return Convolved(self.layer, self.x[examples], self.z[examples])


def is_one_convolution(layer: nn.Module, places: int) -> bool:
    """Whether :func:`weight_gradients` has the gradients, and sooner than a product of patches."""
    channels = layer.weight.shape[1]
    numbers = layer.weight.numel() // layer.groups
    slow = channels <= _FEW_CHANNELS or numbers > _MANY_NUMBERS * places
    return _is_plain(layer) and not (layer.groups == 1 and slow)


def weight_gradients(layer: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    """Of n examples, one after another, from z (n, channels, ...): (n channels, i, ...)."""
    n, (o, *shape) = len(x), layer.weight.shape
    weight_gradient = nn.grad.conv1d_weight if x.ndim == 3 else nn.grad.conv2d_weight
    made: Tensor = weight_gradient(
        x.reshape(1, -1, *x.shape[2:]),
        (n * o, *shape),
        z.reshape(1, -1, *z.shape[2:]),
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=n * layer.groups,
    )
    return made


def patches(layer: nn.Module, a: Tensor) -> Tensor:
    """What each place of a convolution sees: (n, g, T, numbers of a patch)."""
    size, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    if layer.padding == "same":
        room = [d * (s - 1) for d, s in zip(dilation, size, strict=True)]
        ends = [(r // 2, r - r // 2) for r in room]
    else:
        ends = [(p, p) for p in ((0,) * len(size) if layer.padding == "valid" else layer.padding)]
    if any(end != (0, 0) for end in ends):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        a = functional.pad(a, [e for pair in reversed(ends) for e in pair], mode=mode)
    if len(size) == 1:
        a = a[:, :, None]
        size, stride, dilation = (1, *size), (1, *stride), (1, *dilation)
    n, channels, *sides = a.shape
    places = [
        (side - d * (s - 1) - 1) // step + 1
        for side, s, step, d in zip(sides, size, stride, dilation, strict=True)
    ]
    # Windows as a view, copied once: several times as fast as functional.unfold.
    a = a.contiguous()
    per_example, per_channel, down, right = a.stride()
    seen = a.as_strided(
        (n, channels, *size, *places),
        (
            per_example,
            per_channel,
            dilation[0] * down,
            dilation[1] * right,
            stride[0] * down,
            stride[1] * right,
        ),
    )
    return seen.reshape(n, layer.groups, -1, places[0] * places[1]).mT


def _is_plain(layer: nn.Module) -> bool:
    """Whether PyTorch's functions say its padding."""
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
