"""``noisescale report LOG``: one page from a saved history."""

import base64
import io
import json
import re

import numpy as np
import pandas as pd
import pytest

from command_line import run
from noisescale.noise.watch.reading import Batch
from noisescale.noise.watch.record import NoiseRecord


@pytest.fixture
def record():
    rng = np.random.default_rng(0)
    made = NoiseRecord(n_train=1_000)
    for update in range(50):
        batch = Batch(1.2 + 0.1 * rng.random(), 0.6, 1 / 32, n_examples=32, n_units=32.0)
        made.take(batch, update=update, learning_rate=0.1, momentum=0.5)
    made.note("a <note>")
    return made


@pytest.mark.parametrize("suffix", ["json", "csv"])
def test_one_page_with_everything(record, tmp_path, suffix):
    log = tmp_path / f"run<1>.{suffix}"
    record.save(log)
    ended = run("report", str(log))
    assert ended.code == 0, ended
    page = (tmp_path / "run<1>.html").read_text("utf-8")
    assert "run&lt;1&gt;" in page
    assert "<1>" not in page
    assert ("a &lt;note&gt;" in page) == (suffix == "json")
    assert page.count("data:image/svg+xml") == 2
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)  # needs nothing else
    sentence = record.advice().sentences[0]
    assert sentence in page
    assert sentence in ended.out
    coded = re.search(r"data:text/csv;base64,([^\"]+)", page)[1]
    history = pd.read_csv(io.BytesIO(base64.b64decode(coded)))
    assert history["trace"].to_list() == pytest.approx(record.history["trace"].to_list())
    assert f"<td>{record.rows[-1].update}</td>" in page
    assert page.count("<tr>") == 2 + 4 + 17  # heads, costs, every third of fifty updates


def test_as_json(record, tmp_path):
    record.save(tmp_path / "run.json")
    told = json.loads(run("report", str(tmp_path / "run.json"), "--json").out)
    assert told["advice"] == record.advice().to_dict()
    assert told["report"].endswith("run.html")


def test_bad_logs_are_refused_in_a_sentence(tmp_path):
    assert "cannot be read" in run("report", str(tmp_path / "no.csv")).sentence
    (tmp_path / "other.json").write_text("{}")
    assert (
        "no history that watch.save wrote" in run("report", str(tmp_path / "other.json")).sentence
    )
    NoiseRecord().save(tmp_path / "empty.csv")
    assert "nothing has been measured" in run("report", str(tmp_path / "empty.csv")).sentence
