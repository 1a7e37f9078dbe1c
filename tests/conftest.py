import os
import warnings

import pytest

# Few cores and small matrices: hypothesis must not call a compile a flaky deadline.
from hypothesis import settings

from noisescale.data import Dataset, DataWarning, load_mnist

settings.register_profile("noisescale", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("noisescale")
os.environ.setdefault("MPLBACKEND", "agg")


@pytest.fixture(scope="session")
def mnist() -> Dataset:
    """MNIST, whole if it can be had, else its embedded part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return load_mnist()


@pytest.fixture(scope="session")
def full_mnist(mnist: Dataset) -> Dataset:
    """All of MNIST, or a skip that says why."""
    if not mnist.complete:
        pytest.skip("full MNIST is out of reach on this machine")
    return mnist
