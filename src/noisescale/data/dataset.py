"""A data set: four arrays, what they are, and how to draw from them."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from noisescale.checks import check_whole, shown
from noisescale.errors import InputError
from noisescale.seeds import random_stream

Images = NDArray[np.float32]
Labels = NDArray[np.int32]


def check_arrays(what: str, arrays: Sequence[NDArray[Any]]) -> None:
    """Refuse what is not two pairs of features, one row an example, and labels."""
    if len(arrays) != 4:
        raise InputError(
            f"{what} must be four arrays, x_train, y_train, x_test and y_test, got {len(arrays)}."
        )
    for part, x, y in (("train", arrays[0], arrays[1]), ("test", arrays[2], arrays[3])):
        for name, array in (("x", x), ("y", y)):
            if not isinstance(array, np.ndarray):
                raise InputError(f"{name}_{part} of {what} must be an array, got {shown(array)}.")
        if x.ndim != 2 or x.dtype.kind not in "fiub" or not np.isfinite(x).all():
            raise InputError(
                f"x_{part} of {what} must be a table of finite numbers, got {x.dtype} of shape "
                f"{x.shape}{_first_not_finite(x)}."
            )
        if y.ndim != 1 or y.dtype.kind not in "iu" or (y.size and y.min() < 0):
            raise InputError(
                f"y_{part} of {what} must be class numbers from 0 on, got {y.dtype} of shape "
                f"{y.shape}."
            )
        if len(x) != len(y) or not len(y):
            raise InputError(
                f"{what} has {len(x)} rows in x_{part} and {len(y)} labels in y_{part}: there must "
                "be as many, and some."
            )
    if arrays[0].shape[1] != arrays[2].shape[1]:
        raise InputError(
            f"{what} has {arrays[0].shape[1]} features for training and {arrays[2].shape[1]} for "
            "testing."
        )


def _first_not_finite(x: NDArray[Any]) -> str:
    wrong = np.argwhere(~np.isfinite(x)).tolist() if x.dtype.kind in "fiub" else []
    return f", with {x[tuple(wrong[0])]} at {wrong[0]}" if wrong else ""


class _Arrays(NamedTuple):
    """Unpacks as ``x_train, y_train, x_test, y_test``."""

    x_train: Images
    y_train: Labels
    x_test: Images
    y_test: Labels


class Dataset(_Arrays):
    """Training and test arrays with their provenance.

    A named tuple of four arrays, so it unpacks as users expect, that also knows its ``name``,
    its ``source``, its number of classes, and whether it is ``complete`` (False for an embedded
    part of a larger set).
    """

    name: str = "unnamed"
    source: str = "memory"
    complete: bool = True
    n_classes: int = 0

    def __new__(cls, x_train: Images, y_train: Labels, x_test: Images, y_test: Labels) -> Self:
        """Arrays that fit together; the number of classes is that of the labels."""
        check_arrays("the data set", (x_train, y_train, x_test, y_test))
        made = super().__new__(cls, x_train, y_train, x_test, y_test)
        made.n_classes = max(int(y_train.max()), int(y_test.max())) + 1
        return made

    @classmethod
    def build(
        cls,
        *arrays: NDArray[np.generic],
        name: str,
        source: str,
        complete: bool,
        n_classes: int | None = None,
    ) -> Self:
        """A data set of these four arrays; the number of classes from the labels unless given."""
        made = cls(*arrays)  # type: ignore[arg-type]
        made.name, made.source, made.complete = name, source, complete
        made.n_classes = made.n_classes if n_classes is None else n_classes
        return made

    def _replace(self, **changes: NDArray[np.generic]) -> Self:
        """A data set with other arrays, which keeps its provenance."""
        arrays = [changes.pop(name, array) for name, array in self._asdict().items()]
        if changes:
            raise InputError(f"a data set has no {', '.join(changes)}.")
        return self.build(
            *arrays,
            name=f"{self.name} (changed)",
            source=self.source,
            complete=self.complete,
            n_classes=self.n_classes,
        )

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of the content: the arrays' types, shapes and bytes, nothing else.

        Computed once: for other arrays make another data set, ``_replace(x_test=...)``.
        """
        digest = hashlib.sha256()
        for array in self:
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def pooled(self) -> tuple[Images, Labels]:
        """Training and test examples together, in that order."""
        return (
            np.concatenate([self.x_train, self.x_test]),
            np.concatenate([self.y_train, self.y_test]),
        )

    def subset(self, *, n_train: int, seed: int, n_test: int | None = None) -> Self:
        """``n_train`` random training examples (and ``n_test`` test examples, or all of them)."""
        train = _draw(len(self.y_train), n_train, "n_train", seed)
        test = slice(None) if n_test is None else _draw(len(self.y_test), n_test, "n_test", seed)
        return self.build(
            self.x_train[train],
            self.y_train[train],
            self.x_test[test],
            self.y_test[test],
            name=f"{self.name}[n_train={n_train}, n_test={n_test or 'all'}, seed={seed}]",
            source=self.source,
            complete=self.complete,
            n_classes=self.n_classes,
        )

    def __repr__(self) -> str:
        part = "" if self.complete else ", a part of the full set"
        return (
            f"<{self.name}: {len(self.y_train)} training and {len(self.y_test)} test examples of "
            f"{self.x_train.shape[1]} features, {self.n_classes} classes{part}; "
            f"from {self.source}; sha256 {self.fingerprint[:12]}>"
        )


def balanced_pair(
    data: Dataset, first: int, second: int, *, n_train: int, n_test: int, seed: int
) -> Dataset:
    """Two classes of the pooled ``data``, as many of each, labelled 0 and 1, in random order."""
    if not isinstance(data, Dataset):
        raise InputError(
            f"data must be a Dataset, as load_dataset('digits') gives, got {shown(data)}."
        )
    first = check_whole("first", first, at_least=0)
    second = check_whole("second", second, at_least=0)
    if first == second:
        raise InputError(f"the two classes must differ, got {first} twice.")
    for size, name in ((n_train, "n_train"), (n_test, "n_test")):
        if check_whole(name, size, at_least=1) % 2:
            raise InputError(f"{name} must be even to be balanced, got {size}.")
    x, y = data.pooled()
    rng = random_stream(seed, "balanced_pair")
    half_train, half_test = n_train // 2, n_test // 2
    train, test = [], []
    for label in (first, second):
        members = np.flatnonzero(y == label)
        if len(members) < half_train + half_test:
            raise InputError(
                f"{data.name} has {len(members)} examples of class {label}, fewer than the "
                f"{half_train} + {half_test} asked for: lower n_train or n_test."
            )
        members = rng.permutation(members)
        train.append(members[:half_train])
        test.append(members[half_train : half_train + half_test])
    chosen_train = rng.permutation(np.concatenate(train))
    chosen_test = rng.permutation(np.concatenate(test))
    return Dataset.build(
        x[chosen_train],
        (y[chosen_train] == second).astype(np.int32),
        x[chosen_test],
        (y[chosen_test] == second).astype(np.int32),
        name=f"{data.name}[{first} against {second}, "
        f"n_train={n_train}, n_test={n_test}, seed={seed}]",
        source=data.source,
        complete=data.complete,
    )


def _draw(population: int, size: int, name: str, seed: int) -> NDArray[np.int64]:
    """``size`` different members of ``range(population)``."""
    if check_whole(name, size, at_least=1) > population:
        raise InputError(f"{name} must be at most {population}, all there are, got {size}.")
    return random_stream(seed, f"subset {name}").permutation(population)[:size]
