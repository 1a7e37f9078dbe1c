"""A JAX function at a point, as curvature needs it: flat parameters in float64, and its data."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from numpy.typing import NDArray

from noisescale.errors import InputError
from noisescale.likelihood import Likelihood

Array = NDArray[np.float64]

BLOCK_BYTES = 1 << 28  # of Jacobian held at once


@dataclass(frozen=True)
class Architecture:
    """What a compiled program depends on: the function, the likelihood, the params' structure.

    Hashable, so that evidences of the same model at other points or priors compile nothing again.
    """

    apply_fn: Callable[[Any, jax.Array], jax.Array]
    likelihood: Likelihood
    tree: Any
    shapes: tuple[tuple[int, ...], ...]

    @property
    def n_params(self) -> int:
        """The number of parameters p."""
        return sum(math.prod(shape) for shape in self.shapes)

    def unflatten(self, w: jax.Array) -> Any:
        """Params from their flat vector."""
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = jnp.split(w, np.cumsum(sizes)[:-1].tolist())
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.tree, leaves)

    def outputs(self, w: Any, x: Any) -> jax.Array:
        """Outputs (n, C); a single output an example may come without its axis."""
        return self.apply_fn(self.unflatten(w), x).reshape(x.shape[0], -1)

    def nll_sum(self, w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        """The summed negative log-likelihood."""
        return jnp.sum(self.nll_each(w, x, y))

    def nll_each(self, w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        """Each example's negative log-likelihood (n,)."""
        return self.likelihood.nll(self.outputs(w, x), y)


@dataclass(frozen=True, eq=False)
class Model:
    """A model at a point: its architecture, flat float64 parameters, and data."""

    architecture: Architecture
    w: Array  # (p,)
    x: NDArray[Any]
    y: NDArray[Any]

    @classmethod
    def at(
        cls,
        apply_fn: Callable[[Any, jax.Array], jax.Array],
        params: Any,
        x: NDArray[Any],
        y: NDArray[Any],
        likelihood: Likelihood,
    ) -> "Model":
        """Flatten ``params`` in float64."""
        leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params)]
        shapes = tuple(leaf.shape for leaf in leaves)
        architecture = Architecture(apply_fn, likelihood, jax.tree.structure(params), shapes)
        return cls(architecture, np.concatenate([leaf.ravel() for leaf in leaves]), x, y)

    @property
    def n_params(self) -> int:
        """The number of parameters p."""
        return len(self.w)

    @property
    def n_outputs(self) -> int:
        """Outputs an example, C."""
        return _n_outputs(self.architecture, *self._example)

    @property
    def _example(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """What a traced program depends on: the shape of one example, and the numbers' type."""
        return self.x.shape[1:], self.block(slice(0))[0].dtype

    def block(self, rows: Any, precision: str = "float64") -> tuple[NDArray[Any], NDArray[Any]]:
        """Some examples, their real numbers in this precision."""
        x, y = self.x[rows], self.y[rows]
        return (
            x.astype(precision, copy=False) if x.dtype.kind == "f" else x,
            y.astype(precision, copy=False) if y.dtype.kind == "f" else y,
        )

    def blocks(self, x: NDArray[Any]) -> Iterator[slice]:
        """Rows of ``x`` whose Jacobian, with what it takes on the way, fits into a block."""
        numbers = self.n_outputs * (self.n_params + 4 * activations(self))
        rows = max(1, BLOCK_BYTES // (8 * numbers))
        return (slice(start, start + rows) for start in range(0, len(x), rows))


def activations(model: Model) -> int:
    """Numbers that one example adds to a forward pass: all that the program computes on the way."""
    return _activations(model.architecture, *model._example)


# Tracing a program takes longer than to run it on some hundred examples.
@lru_cache(maxsize=16)
def _n_outputs(architecture: Architecture, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    w, x = np.empty(architecture.n_params), np.empty((1, *shape), dtype)
    with jax.enable_x64(True):
        return int(jax.eval_shape(architecture.outputs, w, x).shape[1])


@lru_cache(maxsize=16)
def _activations(architecture: Architecture, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    sizes, w = [], np.empty(architecture.n_params)
    for n in (1, 2):
        with jax.enable_x64(True):
            program = jax.make_jaxpr(architecture.outputs)(w, np.empty((n, *shape), dtype))
        sizes.append(_numbers(program.jaxpr))
    return max(sizes[1] - sizes[0], math.prod(shape), 1)


def _numbers(program: Any) -> int:
    """All that a program computes: what it calls counts with its inside, and a loop every time."""
    return sum(
        max(
            sum(math.prod(getattr(v.aval, "shape", ())) for v in equation.outvars),
            _turns(equation)[0] * sum(_numbers(inner.jaxpr) for inner in _inside(equation)),
        )
        for equation in program.eqns
    )


def _inside(equation: Any) -> Iterator[ClosedJaxpr]:
    """The programs that an equation calls: of jit, checkpoint, a loop, branches, custom rules."""
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, ClosedJaxpr):
                yield part
            elif isinstance(part, Jaxpr) and not part.constvars:
                yield ClosedJaxpr(part, ())


def _turns(equation: Any) -> tuple[int, int]:
    """How often it runs what it calls, and how many of these turns XLA counts.

    A loop that ends when its condition says so counts once.
    """
    if equation.primitive.name != "scan":
        return 1, 1
    length, unrolled = equation.params["length"], max(1, int(equation.params["unroll"]))
    return length, min(length, unrolled + length % unrolled)


def pass_flops(model: Model) -> float:
    """Operations of one example's pass, as XLA counts them, with every turn of a loop."""
    n = min(8, len(model.x))
    x = np.zeros((n, *model.x.shape[1:]), model.block(slice(0))[0].dtype)
    with jax.enable_x64(True):
        outputs = model.architecture.outputs
        counted = _counted(jax.jit(outputs).lower(model.w, x))
        counted += _further_turns(jax.make_jaxpr(outputs)(model.w, x))
    counted /= n
    return counted if math.isfinite(counted) and counted > 0 else 2.0 * model.n_params


def _flops(program: ClosedJaxpr) -> float:
    lowered = jax.jit(jaxpr_as_fun(program)).lower(*program.in_avals)
    return _counted(lowered) + _further_turns(program)


def _counted(lowered: Any) -> float:
    """The operations that XLA counts."""
    return float((lowered.cost_analysis() or {}).get("flops", 0.0))


def _further_turns(program: ClosedJaxpr) -> float:
    """The operations of the turns of loops that XLA does not count."""
    total = 0.0
    for equation in program.jaxpr.eqns:
        turns, counted = _turns(equation)
        for inner in _inside(equation):
            further = turns - counted
            total += counted * _further_turns(inner) + (further * _flops(inner) if further else 0.0)
    return total


def check_nll(model: Model) -> None:
    """A user's nll must give one number an example: a broadcast would pass unnoticed."""
    for n in {1, len(model.y)}:
        with jax.enable_x64(True):
            outputs = jax.eval_shape(model.architecture.outputs, model.w, model.block(slice(n))[0])
            try:
                shape = jax.eval_shape(
                    model.architecture.likelihood.nll, outputs, model.y[:n]
                ).shape
            except (TypeError, ValueError, IndexError, AttributeError) as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise InputError(
                    f"likelihood does not accept outputs of shape {outputs.shape} with y of shape "
                    f"{model.y[:n].shape}: {reason}"
                ) from error
        if shape != (n,):
            raise InputError(
                f"likelihood must return one number an example, shape ({n},), but returns shape "
                f"{shape} for outputs of shape {outputs.shape} and y of shape {model.y[:n].shape}."
            )
