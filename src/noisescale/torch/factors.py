"""Per-example gradients of a parameter before they are formed, as factors that are smaller.

A weight that multiplies inputs a has, for an example with gradients b at the outputs, the gradient
sum_t b_t a_t' over the positions t where it was used. From (a, b) follow, often without ever
forming it,

    the gradient itself,           sum_t b_t a_t'
    the product of two gradients,  sum_ts (a_t . a'_s) (b_t . b'_s)
    its squared norm,              the product with itself
    sums over examples of squared entries.

Axes: n examples; k gradients of each (rows c' J_i of several c share the inputs a_i); g groups; T
positions; i and o, the widths of inputs and outputs. Every class has the same names in this order:
``gradients``, ``along``, ``kernel``, ``squared_norms``, ``squares``, ``total``, ``of_examples``,
``chosen``, ``kernel_flops``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from noisescale.evidence.problem import Weight

_CACHED = 1 << 19  # numbers of gradients that are formed and added up in one go


class Factor(Protocol):
    """A parameter's gradients of n examples, k of each."""

    def gradients(self) -> Tensor:
        """The gradients (n, k, size of the parameter)."""
        ...

    def along(self, direction: Tensor) -> Tensor:
        """The product of every gradient with one direction of the parameter's shape: (n, k)."""
        ...

    def kernel(self, other: "Factor") -> Tensor:
        """The product of every gradient with every one of ``other``: (n k, n' k')."""
        ...

    def squared_norms(self) -> Tensor:
        """Of every gradient: (n, k)."""
        ...

    def squares(self) -> Tensor:
        """The squared entries, summed over all n k gradients: (size,)."""
        ...

    def total(self) -> Tensor:
        """The sum of all n k gradients: (size,)."""
        ...

    def of_examples(self, n: int) -> "Factor":
        """With what the leading axis has more than ``n`` made positions: example by example."""
        ...

    def chosen(self, examples: slice) -> "Factor":
        """Of some examples alone."""
        ...

    def kernel_flops(self) -> float:
        """Arithmetic of one entry of ``kernel``; the product of formed gradients takes 2 size."""
        ...


@dataclass(frozen=True, eq=False)
class Outer:
    """Gradients sum_t b_t a_t' of a weight (g, o, i), or (i, o) if ``transposed``."""

    a: Tensor  # (n, g, T, i)
    b: Tensor  # (n, k, g, T, o)
    transposed: bool = False

    @property
    def width(self) -> int:
        """i."""
        return int(self.a.shape[-1])

    @property
    def numbers(self) -> int:
        """That an example's gradients follow from."""
        return int(self.a[0].numel() + self.b[0].numel())

    def gradients(self, room: Tensor | None = None) -> Tensor:
        """By one product of matrices an example, all its k gradients in one.

        ``room`` (n or more, k, size) may hold them, instead of new memory.
        """
        n, k, g, T, o = self.b.shape
        i = self.a.shape[-1]
        a = self.a.reshape(n * g, T, i)
        if self.transposed:  # one group
            b = self.b.permute(0, 2, 3, 1, 4).reshape(n, T, k * o)
            made = torch.bmm(a.mT, b).reshape(n, i, k, o).permute(0, 2, 1, 3)
            return made.reshape(n, k, i * o)
        if k == 1:  # nothing to be moved
            b = self.b[:, 0].flatten(0, 1).mT
        else:
            b = self.b.permute(0, 2, 1, 4, 3).reshape(n * g, k * o, T)
        own = None
        if room is not None and 1 in (k, g) and not (a.requires_grad or b.requires_grad):
            own = room[:n].view(n * g, k * o, i)
        made = torch.bmm(b, a, out=own).reshape(n, g, k, o * i)
        return made.transpose(1, 2).reshape(n, k, g * o * i)

    def formed(self) -> Iterator[tuple[slice, Tensor]]:
        """Some examples and their gradients (m, k, size), few enough to stay in the cache.

        All are made in the same place: done with before the next.
        """
        n, k, g, _, o = self.b.shape
        size = g * o * self.width
        step = min(n, max(1, _CACHED // (k * size)))
        room = self.b.new_empty(step, k, size)
        for start in range(0, n, step):
            part = slice(start, min(start + step, n))
            yield part, self.chosen(part).gradients(room)

    def inputs(self, positions: int) -> Iterator[Tensor]:
        """Those of all examples, (m, g, T, i) at a time; ``positions`` at most if they are made."""
        yield self.a

    def along(self, direction: Tensor) -> Tensor:
        """sum_t b_t . (V a_t), or (V' b_t) . a_t where that is shorter."""
        n, k, g, T, o = self.b.shape
        i = self.a.shape[-1]
        V = direction.reshape(i, o).T if self.transposed else direction.reshape(g, o, i)
        if g > 1:
            return torch.einsum("ngto,nkgto->nk", self.a @ V.mT, self.b)
        # One product for all examples, where a batch of them would copy V for each.
        V, a, b = V.reshape(o, i), self.a.reshape(n, T * i), self.b
        if k * i < o:
            pushed = (b.reshape(n * k * T, o) @ V).reshape(n, k, T * i)
            return pushed.mul_(a[:, None]).sum(dim=2)
        pushed = (a.reshape(n * T, i) @ V.T).reshape(n, 1, T * o)
        b = b.reshape(n, k, T * o)
        return (pushed.mul_(b) if k == 1 else pushed * b).sum(dim=2)

    def kernel(self, other: Factor) -> Tensor:
        """Gram matrices of inputs and of output gradients, multiplied entry by entry."""
        assert isinstance(other, Outer)
        n, k, g, T, _ = self.b.shape
        m, q, _, S, _ = other.b.shape
        total = self.b.new_zeros(n, k, m, q)
        for group in range(g):
            a, a2 = (f.a[:, group].reshape(-1, f.a.shape[-1]) for f in (self, other))
            b, b2 = (f.b[:, :, group].reshape(-1, f.b.shape[-1]) for f in (self, other))
            inputs = (a @ a2.T).reshape(n, 1, T, m, 1, S)
            outputs = (b @ b2.T).reshape(n, k, T, m, q, S)
            total += (
                (inputs * outputs).sum(dim=(2, 5))
                if T * S > 1
                else ((inputs * outputs).reshape(n, k, m, q))
            )
        return total.reshape(n * k, m * q)

    def squared_norms(self) -> Tensor:
        """From the Gram matrices of an example with itself, or from its gradients."""
        _, _, _, T, o = self.b.shape
        if T == 1:
            return torch.einsum("ngti,nkgto->nk", self.a**2, self.b**2)
        if T * (self.width + o) >= self.width * o:
            return self.gradients().square_().sum(dim=2)
        inputs = self.a @ self.a.mT  # (n, g, T, T)
        outputs = self.b @ self.b.mT  # (n, k, g, T, T)
        return torch.einsum("ngts,nkgts->nk", inputs, outputs)

    def squares(self) -> Tensor:
        """(sum of b^2)' a^2 where there is one position, else from the gradients."""
        _, _, g, T, o = self.b.shape
        if T > 1:
            total = self.b.new_zeros(g * o * self.width)
            for _, G in self.formed():
                rows = G.flatten(0, 1).square_()
                total.addmv_(rows.T, rows.new_ones(len(rows)))
            return total
        both = torch.einsum("ngto,ngti->goi", (self.b**2).sum(dim=1), self.a**2)
        return (both.mT if self.transposed else both).reshape(-1)

    def total(self) -> Tensor:
        """One product of matrices over all examples and positions."""
        summed = torch.einsum("ngto,ngti->goi", self.b.sum(dim=1), self.a)
        return (summed.mT if self.transposed else summed).reshape(-1)

    def of_examples(self, n: int) -> "Outer":
        """Patches or tokens that were taken for examples are positions."""
        m, k, g, T, o = self.b.shape
        if m == n:
            return self
        a = self.a.reshape(n, m // n, g, T, -1).transpose(1, 2).reshape(n, g, m // n * T, -1)
        b = self.b.reshape(n, m // n, k, g, T, o).permute(0, 2, 3, 1, 4, 5)
        return Outer(a, b.reshape(n, k, g, m // n * T, o), self.transposed)

    def chosen(self, examples: slice) -> "Outer":
        """Views."""
        return Outer(self.a[examples], self.b[examples], self.transposed)

    def kernel_flops(self) -> float:
        """As counted for any framework's layers."""
        _, k, g, T, o = self.b.shape
        return Weight(self.width, o, T, g).kernel_flops(k)


@dataclass(frozen=True, eq=False)
class Lookup:
    """Gradients of a table (V, d) whose rows ``index`` were looked up: sum_t e_index(t) b_t'."""

    index: Tensor  # (n, T), of whole numbers
    b: Tensor  # (n, k, T, d)
    n_rows: int

    def gradients(self) -> Tensor:
        """Output gradients added up in their rows."""
        n, k, T, d = self.b.shape
        made = self.b.new_zeros(n, k, self.n_rows, d)
        made.scatter_add_(2, self.index[:, None, :, None].expand(n, k, T, d), self.b)
        return made.reshape(n, k, self.n_rows * d)

    def along(self, direction: Tensor) -> Tensor:
        """Output gradients with the rows of the direction that were looked up."""
        rows = direction.reshape(self.n_rows, -1)[self.index]  # (n, T, d)
        return torch.einsum("ntd,nktd->nk", rows, self.b)

    def kernel(self, other: Factor) -> Tensor:
        """Output gradients of positions that looked up the same row."""
        assert isinstance(other, Lookup)
        n, k, T, d = self.b.shape
        m, q, S, _ = other.b.shape
        same = self.index.reshape(n, 1, T, 1, 1, 1) == other.index.reshape(1, 1, 1, m, 1, S)
        outputs = (self.b.reshape(-1, d) @ other.b.reshape(-1, d).T).reshape(n, k, T, m, q, S)
        return (outputs * same).sum(dim=(2, 5)).reshape(n * k, m * q)

    def squared_norms(self) -> Tensor:
        """As the kernel's diagonal."""
        return torch.einsum("nts,nkts->nk", self._same(), self.b @ self.b.mT)

    def squares(self) -> Tensor:
        """Each position holds the sum of all that share its row, and counts as one of them."""
        same = self._same()  # (n, T, T)
        together = (same[:, None] @ self.b).square_() / same.sum(dim=2)[:, None, :, None]
        made = self.b.new_zeros(self.n_rows, self.b.shape[-1])
        made.index_add_(0, self.index.reshape(-1), together.sum(dim=1).flatten(0, 1))
        return made.reshape(-1)

    def total(self) -> Tensor:
        """Output gradients added up in their rows."""
        made = self.b.new_zeros(self.n_rows, self.b.shape[-1])
        made.index_add_(0, self.index.reshape(-1), self.b.sum(dim=1).flatten(0, 1))
        return made.reshape(-1)

    def of_examples(self, n: int) -> "Lookup":
        """Further positions."""
        m, k, T, d = self.b.shape
        if m == n:
            return self
        b = self.b.reshape(n, m // n, k, T, d).transpose(1, 2).reshape(n, k, m // n * T, d)
        return Lookup(self.index.reshape(n, m // n * T), b, self.n_rows)

    def chosen(self, examples: slice) -> "Lookup":
        """Views."""
        return Lookup(self.index[examples], self.b[examples], self.n_rows)

    def kernel_flops(self) -> float:
        """T^2 products of d numbers."""
        T, d = self.b.shape[2:]
        return float(T**2 * (2 * d + 2))

    def _same(self) -> Tensor:
        return (self.index[:, :, None] == self.index[:, None, :]).to(self.b.dtype)


@dataclass(frozen=True, eq=False)
class Formed:
    """Gradients that are no larger than what they would be formed from: biases, norms."""

    g: Tensor  # (n, k, size)

    def gradients(self) -> Tensor:
        """As they are."""
        return self.g

    def along(self, direction: Tensor) -> Tensor:
        """A product of a matrix and a vector."""
        return self.g @ direction.reshape(-1)

    def kernel(self, other: Factor) -> Tensor:
        """A product of matrices."""
        theirs = other.gradients()
        return self.g.flatten(0, 1) @ theirs.flatten(0, 1).T

    def squared_norms(self) -> Tensor:
        """Sums of squares."""
        return (self.g**2).sum(dim=2)

    def squares(self) -> Tensor:
        """Sums of squares."""
        return (self.g**2).sum(dim=(0, 1))

    def total(self) -> Tensor:
        """A sum."""
        return self.g.sum(dim=(0, 1))

    def of_examples(self, n: int) -> "Formed":
        """Added up."""
        if len(self.g) == n:
            return self
        return Formed(self.g.reshape(n, -1, *self.g.shape[1:]).sum(dim=1))

    def chosen(self, examples: slice) -> "Formed":
        """Views."""
        return Formed(self.g[examples])

    def kernel_flops(self) -> float:
        """What a product of two takes."""
        return 2.0 * int(self.g.shape[2])


class Summed(Formed):
    """Gradients sum_t b_t of a bias, from (n, k, T, o), formed when they are first asked for."""

    b: Tensor

    def __init__(self, b: Tensor) -> None:
        object.__setattr__(self, "b", b)

    @cached_property
    def g(self) -> Tensor:
        """(n, k, o)."""
        return self.b.sum(dim=2)

    def of_examples(self, n: int) -> Formed:
        """As they are, or added up."""
        return self if len(self.b) == n else Formed(self.g).of_examples(n)


def added(factors: list[Factor]) -> Factor:
    """The sum of gradients that one parameter has from several uses.

    Uses of the same kind are further positions of one; of different kinds (a table that is looked
    up and multiplied too) they are formed and added.
    """
    first = factors[0]
    if len(factors) == 1:
        return first
    if isinstance(first, Outer) and all(isinstance(f, Outer) for f in factors):
        a = torch.cat([f.a for f in factors if isinstance(f, Outer)], dim=2)
        b = torch.cat([f.b for f in factors if isinstance(f, Outer)], dim=3)
        if all(f.transposed == first.transposed for f in factors if isinstance(f, Outer)):
            return Outer(a, b, first.transposed)
    if isinstance(first, Lookup) and all(isinstance(f, Lookup) for f in factors):
        index = torch.cat([f.index for f in factors if isinstance(f, Lookup)], dim=1)
        b = torch.cat([f.b for f in factors if isinstance(f, Lookup)], dim=2)
        return Lookup(index, b, first.n_rows)
    total = factors[0].gradients()
    for factor in factors[1:]:
        total = total + factor.gradients()
    return Formed(total)
