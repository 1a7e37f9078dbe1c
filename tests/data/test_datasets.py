import importlib
import os
import pickle
import sys

import numpy as np
import pytest

from noisescale import data
from noisescale.data.cache import forget_failures
from noisescale.data.sources import MNIST
from noisescale.data.verified import facts_of
from noisescale.errors import InputError


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No cache, no index, no network: what a laptop on a train sees."""
    monkeypatch.setenv("NOISESCALE_DATA", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    forget_failures(MNIST)
    yield
    forget_failures(MNIST)


@pytest.fixture(scope="module")
def toy():
    """120 + 40 examples of four classes, every image different."""
    x = np.arange(160, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    y = np.arange(160, dtype=np.int32) % 4
    return data.Dataset.build(
        x[:120], y[:120], x[120:], y[120:], name="toy", source="here", complete=True
    )


def test_mnist_is_mnist(full_mnist):
    x_train, y_train, x_test, y_test = full_mnist
    assert x_train.shape == (60_000, 784)
    assert x_test.shape == (10_000, 784)
    assert x_train.dtype == x_test.dtype == np.float32
    assert y_train.dtype == y_test.dtype == np.int32
    assert x_train.min() == 0.0
    assert x_train.max() == 1.0
    # Published class counts and first labels.
    assert np.bincount(y_train)[:3].tolist() == [5923, 6742, 5958]
    assert np.bincount(y_test)[:2].tolist() == [980, 1135]
    assert y_train[:5].tolist() == [5, 0, 4, 1, 9]
    assert x_train.mean() == pytest.approx(0.1307, abs=1e-4)
    assert full_mnist.fingerprint.startswith("56d04129dc4a")
    x, y = full_mnist.pooled()
    assert x.shape == (70_000, 784)
    assert len(y) == 70_000


def test_the_embedded_part_is_a_part(offline, full_mnist):
    with pytest.warns(data.DataWarning, match="Full MNIST is out of reach") as caught:
        part = data.load_mnist()
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "5,000 training and 2,000 test images instead of 60,000 and 10,000" in message
    assert "\n" not in message
    assert not part.complete
    assert "a part of the full set" in repr(part)
    np.testing.assert_array_equal(part.x_train, full_mnist.x_train[:5000])
    np.testing.assert_array_equal(part.y_train, full_mnist.y_train[:5000])
    np.testing.assert_array_equal(part.x_test, full_mnist.x_test[:2000])
    np.testing.assert_array_equal(part.y_test, full_mnist.y_test[:2000])


def test_fetch_says_so_when_nothing_can_be_reached(offline):
    with pytest.raises(data.DataUnavailableError, match="mnist could not be had .* put its files"):
        data.fetch("mnist")


def test_fashion_mnist():
    try:
        clothes = data.load_fashion_mnist()
    except data.DataUnavailableError as error:
        pytest.skip(f"Fashion-MNIST is out of reach: {error}")
    assert clothes.x_train.shape == (60_000, 784)
    assert (np.bincount(clothes.y_train) == 6000).all()
    assert clothes.name == "fashion-mnist"


def test_digits():
    digits = data.load_digits()
    assert len(digits.y_train) + len(digits.y_test) == 1797
    assert digits.x_train.max() == 1.0
    assert digits.n_classes == 10
    assert digits.fingerprint == data.load_digits().fingerprint
    row = next(row for row in data.status() if row["name"] == "digits")
    assert row["examples"] == f"{len(digits.y_train):,} + {len(digits.y_test):,}"


@pytest.mark.parametrize("name", ["digits", "mnist-embedded"])
def test_facts_are_those_of_the_data(name):
    assert data.facts(name) == facts_of(data.load_dataset(name))


def test_facts_of_mnist(full_mnist):
    assert data.facts("mnist") == facts_of(full_mnist)


def test_the_facts_of_fashion_mnist_are_those_of_its_content():
    try:
        loaded = data.load_fashion_mnist()
    except data.DataUnavailableError as error:
        pytest.skip(f"Fashion-MNIST is out of reach: {error}")
    assert data.facts("fashion-mnist") == facts_of(loaded)


def test_facts_of_other_data_come_from_loading_them_once(monkeypatch):
    calls = []

    def arrays():
        calls.append(1)
        return np.eye(3), np.arange(3), np.eye(3), np.arange(3)

    monkeypatch.setattr("noisescale.data.import_function", lambda what, name: arrays)
    for _ in range(2):
        assert data.facts("nowhere:once")[1:] == (3, 3, 3, 3)
    assert len(calls) == 1


def test_a_fingerprint_is_computed_once(toy, monkeypatch):
    changed = toy._replace(x_test=toy.x_test + 1)
    first = changed.fingerprint
    monkeypatch.setattr("noisescale.data.dataset.hashlib", None)
    assert changed.fingerprint == first


def test_subsets_are_drawn_by_seed(toy):
    a, b, c = (toy.subset(n_train=30, seed=seed) for seed in (1, 1, 2))
    assert a.fingerprint == b.fingerprint != c.fingerprint
    assert len(np.unique(a.x_train[:, 0])) == 30
    assert set(a.x_train[:, 0]) <= set(toy.x_train[:, 0])
    np.testing.assert_array_equal(a.y_train, a.x_train[:, 0] % 4)
    np.testing.assert_array_equal(a.x_test, toy.x_test)
    assert len(toy.subset(n_train=5, n_test=7, seed=0).y_test) == 7
    assert "n_train=30" in a.name
    assert "seed=1" in a.name


@pytest.mark.parametrize(
    ("n_train", "message"),
    [
        (0, "n_train must be at least 1, got 0"),
        (121, "n_train must be at most 120, all there are, got 121"),
        (10.0, "n_train must be a whole number, got 10.0"),
    ],
)
def test_a_subset_must_fit(toy, n_train, message):
    with pytest.raises(InputError, match=message):
        toy.subset(n_train=n_train, seed=0)


def test_provenance_is_kept(toy):
    few = toy.subset(n_train=1, seed=0)
    assert few.n_classes == 4
    part = data.Dataset.build(*toy, name="part", source="here", complete=False)
    changed = part._replace(y_test=toy.y_test[::-1])
    assert (changed.name, changed.complete) == ("part (changed)", False)
    assert changed.fingerprint != part.fingerprint


def test_balanced_binary(toy):
    pair = data.balanced_binary(1, 3, n_train=20, n_test=60, seed=4, data=toy)
    assert pair.y_train.mean() == pair.y_test.mean() == 0.5
    for x, y in ((pair.x_train, pair.y_train), (pair.x_test, pair.y_test)):
        np.testing.assert_array_equal(x[:, 0] % 4, np.where(y == 1, 3, 1))
    assert not set(pair.x_train[:, 0]) & set(pair.x_test[:, 0])
    # Not sorted by class: a batch that takes consecutive examples must not see one class alone.
    assert 0 < np.diff(pair.y_train).nonzero()[0].size < 19
    assert (np.diff(pair.y_train) != 0).sum() > 1
    again = data.balanced_binary(1, 3, n_train=20, n_test=60, seed=4, data=toy)
    assert again.fingerprint == pair.fingerprint


def test_section_3_of_the_paper_fits(full_mnist):
    pair = data.balanced_binary(0, 1, n_train=800, n_test=10_000, data=full_mnist)
    assert pair.x_train.shape == (800, 784)
    assert np.bincount(pair.y_test).tolist() == [5000, 5000]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 1, 4, 4), "the two classes must differ, got 1 twice"),
        ((1, 2, 5, 4), "n_train must be even to be balanced, got 5"),
        ((1, 2, 4, 0), "n_test must be at least 1, got 0"),
        ((1, 2, 40, 60), "toy has 40 examples of class 1, fewer than the 20 \\+ 30 asked for"),
        ((1, 9, 2, 2), "toy has 0 examples of class 9"),
    ],
)
def test_impossible_pairs(toy, arguments, message):
    first, second, n_train, n_test = arguments
    with pytest.raises(InputError, match=message):
        data.balanced_binary(first, second, n_train=n_train, n_test=n_test, data=toy)


def test_the_fingerprint_is_of_the_content(toy):
    changed = toy.x_test.copy()
    changed[0, 0] += 1
    other = data.Dataset.build(
        toy.x_train, toy.y_train, changed, toy.y_test, name="toy", source="here", complete=True
    )
    renamed = data.Dataset.build(*toy, name="another", source="there", complete=False)
    assert other.fingerprint != toy.fingerprint == renamed.fingerprint


def test_a_dataset_survives_a_trip_to_another_process(toy):
    back = pickle.loads(pickle.dumps(toy))
    assert back.name == "toy"
    assert back.fingerprint == toy.fingerprint


def test_a_function_that_was_edited_and_reloaded_gives_other_data(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    text = "import numpy as np\ndef make():\n    x, y = np.full((4, 2), {}), np.arange(4) % 2\n"
    found = []
    for value in (1.0, 2.0):
        (tmp_path / "edited_data.py").write_text(text.format(value) + "    return x, y, x, y\n")
        importlib.reload(importlib.import_module("edited_data"))
        found.append(data.facts("edited_data:make").fingerprint)
        assert data.load_kept("edited_data:make").fingerprint == found[-1]
        assert data.load_kept("edited_data:make") is data.load_kept("edited_data:make")
    assert found[0] != found[1]


def test_data_sets_that_are_used_by_turns_are_loaded_once(monkeypatch):
    loaded, digits = [], data.load_digits()
    names = ("first", "second", "third")
    for name in names:
        monkeypatch.setitem(data._LOADERS, name, lambda name=name: loaded.append(name) or digits)
    data._kept.cache_clear()
    for name in names * 3:
        data.load_kept(name)
    assert loaded == [*names]
    data._kept.cache_clear()
