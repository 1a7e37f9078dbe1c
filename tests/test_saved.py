"""Saved results: what `save` wrote is read, and whatever else is a sentence."""

import copy
import json
import math
import re
import resource
import signal

import numpy as np
import pytest

from command_line import run
from noisescale.errors import InputError
from noisescale.evidence.prequential import PrequentialEvidence
from noisescale.noise import AdamRecipe, Recipe
from noisescale.noise.watch import saved as watch
from noisescale.noise.watch.reading import Batch
from noisescale.noise.watch.record import NoiseRecord
from noisescale.plain import to_plain
from noisescale.tune import TuneResult
from noisescale.tune.result import Decision


def watched():
    record, rng = NoiseRecord(n_train=1000), np.random.default_rng(0)
    for k in range(6):
        batch = Batch(1.5 + rng.random(), 0.2, 1 / 32, n_examples=32, n_units=32.0)
        record.take(batch, update=k, learning_rate=0.1, momentum=0.0, layers={"0.weight": batch})
    record.note("a note")
    return record


def tuned(recipe=Recipe):
    start, best = (recipe(learning_rate=0.1, batch_size=B, n_train=1000) for B in (8, 64))
    trail = tuple(
        Decision(1, "batch_size", tried, score, error, None, math.nan, 3, True, "why")
        for tried, score, error in ((start, 0.9, 0.01), (best, math.nan, math.nan))
    )
    return TuneResult(
        best, start, True, "done", trail, 80, 10, 2.0, 9, 900, 1.5, 1e-3, 1e-5, ("a note",)
    )


def bets():
    rng = np.random.default_rng(0)
    return PrequentialEvidence(
        log_null=-20.0,
        ends=(4, 8, 16),
        losses=np.where(rng.random((2, 2, 4)) > 0.9, np.inf, 3.0),
        null_losses=rng.random((2, 3)) * 9,
        scores=rng.random((2, 2)),
        temperatures=(0.5, 1.0, 2.0),
        null_expert=True,
        null="uniform",
        ensemble=2,
        seed=0,
        n_train=16,
        n_classes=3,
    )


RESULTS = {
    "watch": (watched, watch.load),
    "tuning": (tuned, TuneResult.load),
    "tuning of Adam": (lambda: tuned(AdamRecipe), TuneResult.load),
    "prequential": (bets, PrequentialEvidence.load),
}


def content(result):
    return to_plain(result.state_dict() if isinstance(result, NoiseRecord) else result)


@pytest.mark.parametrize("name", RESULTS)
def test_what_is_saved_is_read(tmp_path, name):
    make, load = RESULTS[name]
    result, path = make(), tmp_path / "r.json"
    result.save(path)
    again = load(path)
    assert content(again) == content(result)  # NaN equals itself as a word
    assert repr(again) == repr(result)


@pytest.mark.parametrize("name", RESULTS)
def test_words_that_files_had_once_are_read(tmp_path, name):
    """Nothing for a number that is not known, and a word of its own for infinity."""
    make, load = RESULTS[name]
    make().save(path := tmp_path / "r.json")
    path.write_text(path.read_text().replace('"nan"', "null").replace('"inf"', '"infinite"'))
    assert repr(load(path)) == repr(make())


@pytest.mark.parametrize("name", RESULTS)
def test_a_full_disk_leaves_what_was_saved_before(tmp_path, name):
    make, _ = RESULTS[name]
    make().save(path := tmp_path / "r.json")
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        with pytest.raises(InputError, match=f"{re.escape(str(path))} cannot be written"):
            make().save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def places(value, path=()):
    """Every field and entry, of lists the first two."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*path, key))
    elif isinstance(value, list):
        for k, part in enumerate(value[:2]):
            yield from places(part, (*path, k))


def replaced(document, path, value):
    made = copy.deepcopy(document)
    part = made
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return made


DAMAGE = ("<img>", None, -1, 0, [], {}, 1e308, 10**400, "inf", "infinite", True)


@pytest.mark.parametrize("name", RESULTS)
def test_no_damaged_field_ends_in_an_error_of_ours(tmp_path, name):
    """It is told by its name, or is such as `save` might have written; what is told is finite."""
    make, load = RESULTS[name]
    make().save(path := tmp_path / "r.json")
    document, refused = json.loads(path.read_text()), 0
    for place in places(document):
        for value in DAMAGE:
            path.write_text(json.dumps(replaced(document, place, value)))
            try:
                told = repr(load(path)) + str(load(path).to_dict())
            except InputError as error:
                refused += 1
                sentence = f"{re.escape(str(path))} is no noisescale .* save wrote: "
                assert re.match(sentence, str(error))
            else:  # losses of bets may be infinite, text may say anything
                assert name == "prequential" or value in ("inf", "infinite") or "inf" not in told
    assert refused > 100


@pytest.mark.parametrize(
    ("name", "place", "value", "told"),
    [
        (
            "tuning",
            ("trail", 1, "recipe", "batch_size"),
            "x",
            "field trail[1].recipe.batch_size: 'x'",
        ),
        ("tuning", ("updates_after",), 0, "field updates_after must be at least 1"),
        ("tuning", ("seconds",), "inf", "field seconds: inf has no sensible size"),
        ("tuning", ("trail", 0, "score"), "inf", "field score: inf has no"),
        (
            "tuning",
            ("trail", 0, "score_std"),
            -1,
            "field score_std: a standard error",
        ),
        ("tuning", ("recipe",), math.nan, "field recipe: nan is not of type"),
        ("watch", ("history", 0, "update"), "x", "field history[0].update: 'x'"),
        ("watch", ("history", 0, "trace"), "inf", "the row of update 0 is none"),
        ("watch", ("history", 2, "batch_size"), None, "the row of update 2 is none"),
        ("watch", ("history", 2, "high"), 1e308, "the row of update 2 is none"),
        ("watch", ("whole", "length"), 0, "the state's length is none"),
        ("watch", ("layers", "0.weight", "recent", 3, 0), "nan", "the state's recent is none"),
        ("prequential", ("losses",), [[1.0]], "field losses: it has shape (1, 1)"),
        ("prequential", ("ends", 1), 40, "field ends: blocks do not go on to 16"),
    ],
)
def test_what_is_wrong_is_told_by_its_name(tmp_path, name, place, value, told):
    make, load = RESULTS[name]
    make().save(path := tmp_path / "r.json")
    path.write_text(json.dumps(replaced(json.loads(path.read_text()), place, value)))
    with pytest.raises(InputError, match=re.escape(told)):
        load(path)


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("text", ["", "[1]", "[" * 100_000, "{}", "\0" * 100, '{"kind": 3}'])
def test_a_file_that_is_no_result_is_a_sentence(tmp_path, name, text):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(str(path))):
        RESULTS[name][1](path)
    assert str(path) in run("report", path).sentence


def test_a_state_that_is_refused_changes_nothing():
    record, other = watched(), NoiseRecord(n_train=1000)
    state = record.state_dict()
    before = other.state_dict()
    for place in (("history", 0, "trace"), ("layers", "0.weight", "blocks"), ("notes", 0)):
        with pytest.raises(InputError, match="the state is not what a watch gave"):
            other.load_state_dict(replaced(state, place, [object]))
        assert other.state_dict() == before
    other.load_state_dict(state)
    assert repr(other) == repr(record)
