"""What a run's configuration must know of its data, without the data.

A verified data set is one content or nothing, so its facts are constants. Whoever trains compares
the fingerprint with what was really loaded.
"""

from typing import NamedTuple

from noisescale.data.dataset import Dataset


class DataFacts(NamedTuple):
    """The fingerprint of a data set, and its sizes."""

    fingerprint: str
    n_train: int
    n_test: int
    n_features: int
    n_classes: int


VERIFIED = {
    "mnist": DataFacts(
        "56d04129dc4ace6b6f495359fcee017d74b56af8f1b1a852c8d5c26c73be778a", 60_000, 10_000, 784, 10
    ),
    "fashion-mnist": DataFacts(
        "34d9eec23a6eafdc0288492e2f3d9866bdc9d0c95161fd3bfca68fac69cd207a", 60_000, 10_000, 784, 10
    ),
    "mnist-embedded": DataFacts(
        "eac3ac0451a955e2b4197d8bb8183eac31208ca112fb3e9ebb289e7deee21862", 5_000, 2_000, 784, 10
    ),
    "digits": DataFacts(
        "44718faa291871fa3f6d113137466d2847c454dbeb74e10ca3d12df0af4b4174", 1_438, 359, 64, 10
    ),
}


def facts_of(data: Dataset) -> DataFacts:
    """The facts of a data set that is loaded."""
    return DataFacts(
        data.fingerprint,
        len(data.y_train),
        len(data.y_test),
        data.x_train.shape[1],
        data.n_classes,
    )
