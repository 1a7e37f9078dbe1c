import json
import re
import shutil
import warnings

import pytest

from noisescale.data import DataWarning
from noisescale.errors import InputError
from noisescale.paper import SECTIONS, run_paper
from noisescale.paper.claims import counts, entries
from noisescale.paper.report import render
from noisescale.paper.section import Measurement, Outcome, Picture, Section
from noisescale.progress import Progress

ENTRY = {"id", "section", "claim", "criterion", "measured", "uncertainty", "verdict",
         "convention", "primary"}  # fmt: skip


class Lines(Progress):
    def __init__(self):
        self.lines, self.n_runs = [], 0

    def line(self, text):
        self.lines.append(text)

    def finished(self, run, record):
        self.n_runs += 1


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    told = Lines()
    out = tmp_path_factory.mktemp("report")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        made = run_paper(out, scale="smoke", progress=told)
    return made, out, told


def test_what_is_written(report):
    made, out, told = report
    assert made.index == out / "index.html"
    assert json.loads((out / "claims.json").read_text()) == made.claims
    assert {"schema", "version", "scale", "data", "seeds", "seconds", "claims"} <= set(made.claims)
    assert all(set(row) >= ENTRY for row in made.claims["claims"])
    drawn = {"units", "figure1", "figure1-whitened", "figure2", "figure2-whitened", "figure3",
             "figure4", "figure5", "footnote-batch-size", "footnote-training-set", "figure6",
             "figure7", "figure8", "figure8-undivided", "figure9", "figure9-approach",
             "figure10", "figure10-labels", "appendixA", "appendixC", "appendixD"}  # fmt: skip
    assert {path.stem for path in (out / "figures").iterdir()} == drawn
    assert (out / "figures" / "units.svg").read_text().lstrip().startswith("<?xml")
    assert {path.name for path in out.iterdir()} == {
        "claims.json", "figures", "index.html", "measured", "runs.sqlite"
    }  # fmt: skip
    assert told.lines[0] == "loading MNIST"
    assert {section.title for section in SECTIONS.values()} <= set(told.lines)


def test_the_second_time_nothing_is_run(report, tmp_path):
    made, out, told = report
    shutil.copy(out / "runs.sqlite", tmp_path)
    n_runs = told.n_runs
    assert n_runs > 20
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        again = run_paper(tmp_path, scale="smoke", only=["units", *"345678"], progress=told)
    assert told.n_runs == n_runs
    before = {row["id"]: row for row in made.claims["claims"] if row["section"] in "345678"}
    assert before == {
        row["id"]: row for row in again.claims["claims"] if row["section"] in "345678"
    }


def test_the_page_needs_nothing_else(report):
    page = report[0].index.read_text()
    sources = re.findall(r"(?:src|href)=\"([^\"]*)\"", page)
    assert sources
    assert all(source.startswith("data:") for source in sources)
    assert "@import" not in page
    assert all(re.search(rf"\b{row['id']}\b", page) for row in report[0].claims["claims"])


def test_every_picture_says_what_it_shows(report):
    page = report[0].index.read_text()
    alts = re.findall(r'<img [^>]*alt="([^"]+)"', page)
    assert len(alts) == page.count("<img ") == 21
    assert "test accuracy" in alts[0]


def test_everything_from_data_is_escaped():
    evil = '<script>alert("x")</script>'
    outcome = Outcome(
        evil, (Picture("p", "<svg/>", evil, evil),), (Measurement(evil, evil, evil),), (), (evil,)
    )
    claims = {
        "version": evil, "scale": evil, "seeds": 1, "seconds": 1.0, "claims": entries([]),
        "data": {"name": evil, "source": evil, "complete": False, "fingerprint": evil},
    }  # fmt: skip
    section = Section("units", evil, lambda context: outcome)
    page = render(claims, counts(claims["claims"]), [(section, outcome)])
    assert "<script" not in page


def test_bad_requests_fail_before_any_work(tmp_path):
    def refuse(match, **changes):
        with pytest.raises(InputError, match=match):
            run_paper(tmp_path / "out", **({"scale": "smoke"} | changes))

    refuse("there is no section 'Z'", only=["Z"])
    refuse("section E cannot be measured by noisescale", only=["E"])
    refuse("seeds must be at least 1, got 0", seeds=0)
    refuse("scale must be one of smoke, quick, full, got 'huge'", scale="huge")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written to .* choose another --out"):
        run_paper(tmp_path / "file" / "out", scale="smoke")


def test_sections_are_keyed_by_their_id():
    assert all(key == section.id for key, section in SECTIONS.items())
