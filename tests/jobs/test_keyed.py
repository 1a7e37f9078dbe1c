"""Keys of work in a store: a promise, because stores are kept."""

from dataclasses import dataclass

import pytest

from noisescale.evidence.prequential.work import Stage
from noisescale.jobs.keyed import Keyed
from noisescale.tune.branches import Branch
from noisescale.tune.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Task(Keyed):
    kind = "task"

    seed: int
    rate: float = 0.1


@pytest.mark.parametrize(
    ("work", "key"),
    [
        (
            Trial(
                function="f",
                n_train=3,
                batch_size=2,
                learning_rate=0.1,
                steps=3,
                seed=0,
                betas=(0.9, 0.99),
            ),
            "65d2ec9c8ddeee43",
        ),
        (
            Branch(function="f", batch_size=2, learning_rate=0.1, n_examples=3, seed=0),
            "12e680ad06da4527",
        ),
        (
            Stage(procedure="p", seed=0, order=0, start=1, stop=2, ensemble=1),
            "f7165d1a993ff325",
        ),
    ],
)
def test_stores_of_earlier_versions_still_answer(work: Keyed, key: str) -> None:
    assert work.key.startswith(key)


def test_a_key_is_of_the_content_and_the_kind_alone() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Other(Task):
        kind = "other"

    assert Task(seed=1).key == Task(rate=0.1, seed=1).key
    assert (
        len({Task(seed=1).key, Task(seed=2).key, Task(seed=1, rate=0.2).key, Other(seed=1).key})
        == 4
    )


def test_a_number_that_json_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        _ = Task(seed=1, rate=float("nan")).key
