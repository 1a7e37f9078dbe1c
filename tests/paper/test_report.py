import base64
import io
import json
import re
import shutil
import warnings
from dataclasses import replace
from functools import wraps
from pathlib import Path

import pandas as pd
import pytest

from noisescale.data import DataWarning
from noisescale.errors import InputError
from noisescale.paper import SECTIONS, redraw, run_paper
from noisescale.paper.claims import Judgement, Verdict
from noisescale.paper.report import Shown, render
from noisescale.paper.section import Findings, Measurement, Picture, Section
from noisescale.paper.stages import verdicts_of
from noisescale.sweep import RunStore

ENTRY = {
    "id",
    "section",
    "claim",
    "criterion",
    "measured",
    "uncertainty",
    "verdict",
    "convention",
    "primary",
}


def test_what_is_written(report):
    made, out, told = report
    assert made.index == out / "index.html"
    assert json.loads((out / "claims.json").read_text()) == made.claims
    head = {"schema", "version", "scale", "data", "seeds", "seconds"}
    lists = {"claims", "readings", "meanings"}
    assert head | lists <= set(made.claims)
    assert all(set(row) >= ENTRY for row in made.claims["claims"])
    drawn = {
        "units",
        "figure1",
        "figure1-whitened",
        "figure2",
        "figure2-whitened",
        "figure3",
        "figure4",
        "figure5",
        "footnote-batch-size",
        "footnote-training-set",
        "figure6",
        "figure7",
        "figure8",
        "figure8-undivided",
        "figure9",
        "figure9-approach",
        "figure10",
        "figure10-labels",
        "figure11",
        "figure11-labels",
        "appendixA",
        "appendixC",
        "appendixD",
        f"appendixE-{made.claims['data']['name']}",
    }
    assert {path.stem for path in (out / "figures").iterdir()} == drawn
    assert (out / "figures" / "units.svg").read_text().lstrip().startswith("<?xml")
    # SQLite's own companions of a store that is being read come and go.
    names = {path.name for path in out.iterdir()} - {"runs.sqlite-shm", "runs.sqlite-wal"}
    assert names == {
        "claims.json",
        "figures",
        "index.html",
        "measured",
        "runs.sqlite",
    }
    assert told.lines[0] == "loading MNIST"
    run = (section for section in SECTIONS.values() if not section.reading)
    assert {section.title for section in run} <= set(told.lines)


def test_the_second_time_nothing_is_run(report, tmp_path, monkeypatch):
    made, out, told = report
    shutil.copy(out / "runs.sqlite", tmp_path)
    for name in ("units", *"345678"):
        monkeypatch.setitem(SECTIONS, name, undrawn(SECTIONS[name]))
    monkeypatch.setattr("noisescale.paper.stages.full_scale", lambda sections: {})
    n_runs = told.n_runs
    assert n_runs > 20
    again = quietly(tmp_path, only=["units", *"345678"], progress=told)
    assert told.n_runs == n_runs
    before = {row["id"]: row for row in made.claims["claims"] if row["section"] in "345678"}
    assert before == {
        row["id"]: row for row in again.claims["claims"] if row["section"] in "345678"
    }


def test_the_page_needs_nothing_else(report):
    page = report[0].index.read_text()
    sources = re.findall(r"(?:src|href)=\"([^\"]*)\"", page)
    assert sources
    assert all(source.startswith(("data:", "#")) for source in sources)
    assert "@import" not in page
    assert len(page) < 5_000_000
    targets = {source[1:] for source in sources if source.startswith("#")}
    assert targets <= set(re.findall(r'\bid="([^"]+)"', page))
    assert all(re.search(rf"\b{row['id']}\b", page) for row in report[0].claims["claims"])


def test_every_figure_has_ids_of_its_own_and_its_values(report):
    page = report[0].index.read_text()
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(set(ids)) == len(ids)
    pictures = re.findall(r'class="picture".*?</svg>', page, re.DOTALL)
    assert sum("<title>" in picture for picture in pictures) > 0.9 * len(pictures)


def test_everything_from_data_is_escaped():
    evil = '<script>alert("x")</script>'
    judgement = Judgement("C01", Verdict.REPRODUCED, {evil: evil}, evil, evil)
    findings = Findings(evil, (judgement,), (Measurement(evil, evil, evil),), (evil,))
    shown = Shown(findings, (Picture("p", "<svg></svg>", evil, evil),), 3, evil, evil)
    claims = {
        "version": evil,
        "scale": evil,
        "seeds": 1,
        "seconds": 1.0,
        **verdicts_of({"units": shown}),
        "data": {"name": evil, "source": evil, "complete": False, "fingerprint": evil},
    }
    section = Section("units", evil, None, None, None)
    both = {"units": shown}
    page = render(claims, both, both, verdicts_of(both), [section], f"key\n{evil}\n")
    assert evil not in page
    assert page.count("<script") == 1


def test_readings_stand_beside_the_first_verdicts(report):
    made, _, _ = report
    entry = {"id", "of", "fixed_on", "verdict", "criterion", "convention", "measured"}
    assert all(set(row) >= entry | {"uncertainty"} for row in made.claims["readings"])
    assert {row["verdict"] for row in made.claims["readings"]} == {"undecided"}  # at this scale
    page = made.index.read_text()
    assert all(f'id="{row["id"]}"' in page for row in made.claims["readings"])


def test_full_scale_results_stand_beside_the_fresh_ones(report):
    made, _, _ = report
    assert made.full_scale["C17"] == "reproduced"
    assert made.full_scale["C23"] == "not reproduced"
    section = section_of(made.index.read_text(), "4")
    assert "fresh, smoke scale" in section
    assert "shipped, 5 seeds" in section
    assert section.count('class="picture"') == 2


def test_every_run_can_be_downloaded(report):
    page = report[0].index.read_text()
    address = re.search(r'download="runs.csv" href="data:text/csv;base64,([^"]+)"', page)[1]
    frame = pd.read_csv(io.StringIO(base64.b64decode(address).decode()))
    with RunStore(report[1]) as store:
        stored = store.frame()
    assert list(frame["key"]) == list(stored["key"])
    assert "score" in frame  # of the tuner's runs


def refusing(section):
    """The section, but for measuring."""
    refuse = wraps(section.measure)(lambda context: pytest.fail("measured again"))
    return replace(section, measure=refuse)


def undrawn(section):
    """The section without its pictures, which take longer than its verdicts."""
    return replace(section, draw=lambda data: ())


def quietly(folder, **options):
    """The report of a folder at smoke scale, without a word on MNIST's embedded part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return run_paper(folder, scale="smoke", **options)


@pytest.fixture
def copy(report, tmp_path):
    """A copy of the report's folder."""
    return shutil.copytree(report[1], tmp_path / "copy")


def test_what_was_measured_is_not_measured_again(report, copy, monkeypatch):
    """Of every section; what is drawn is not compared here."""
    for section in SECTIONS.values():
        monkeypatch.setitem(SECTIONS, section.id, undrawn(refusing(section)))
    monkeypatch.setattr("noisescale.paper.stages.full_scale", lambda sections: {})
    assert quietly(copy).claims["claims"] == report[0].claims["claims"]
    assert redraw(copy).claims["claims"] == report[0].claims["claims"]


def test_redrawing_runs_nothing_and_says_the_same(copy, monkeypatch):
    monkeypatch.setattr("noisescale.jobs.engines.LocalEngine", lambda *_: pytest.fail("runs"))
    made = quietly(copy, only=["4", "9", "C"])
    page = made.index.read_text()
    made.index.unlink()
    monkeypatch.setattr("noisescale.data.load_mnist", lambda: pytest.fail("loads images"))
    again = redraw(copy)
    assert again.claims == made.claims
    assert again.index.read_text() == page


def test_a_section_that_another_version_measured_is_shown_as_such_and_measured_again(
    copy, monkeypatch
):
    monkeypatch.setattr("noisescale.paper.stages.full_scale", lambda sections: {})
    made = quietly(copy, only=["9", "C"])
    assert "measured by version" not in section_of(made.index.read_text(), "C")
    monkeypatch.setitem(SECTIONS, "C", replace(refusing(SECTIONS["C"]), version=2))
    again = redraw(copy)
    assert again.claims == made.claims
    page = again.index.read_text()
    assert "measured by version 1, this is version 2" in section_of(page, "C")
    assert "measured by version" not in section_of(page, "9")
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        quietly(copy, only=["C"])


def test_what_was_asked_for_is_judged_and_drawn_and_nothing_else(copy, monkeypatch):
    (copy / "figures" / "mine.svg").write_text("mine")
    monkeypatch.setitem(SECTIONS, "9", refusing(SECTIONS["9"]))
    judged = []
    of = Shown.of.__func__
    monkeypatch.setattr(
        Shown, "of", classmethod(lambda cls, s, kept: judged.append(s.id) or of(cls, s, kept))
    )
    made = quietly(copy, only=["9"])
    assert set(judged) == {"9"}
    assert set(re.findall('id="section-([^"]+)"', made.index.read_text())) == {"9"}
    assert sorted(made.full_scale) == [
        row["id"] for row in made.claims["claims"] if row["section"] == "9" and row["primary"]
    ]
    names = {path.stem for path in (copy / "figures").iterdir()}
    assert names == {"figure9", "figure9-approach", "mine"}
    page = made.index.read_text()
    assert redraw(copy).claims == made.claims
    assert made.index.read_text() == page


def test_what_cannot_be_judged_is_a_sentence_that_names_the_file(copy):
    claims = json.loads((copy / "claims.json").read_text())
    (copy / "claims.json").write_text(json.dumps(claims | {"only": ["9"]}))
    (kept,) = (copy / "measured").glob("section-9-*.json")
    document = json.loads(kept.read_text())
    document["data"]["over_examples"] = []
    kept.write_text(json.dumps(document))
    with pytest.raises(InputError, match=f"{re.escape(str(kept))} cannot be judged"):
        redraw(copy)


def section_of(page, name):
    start = page.index(f'id="section-{name}"')
    return page[start : page.index("</section>", start)]


def test_the_page_does_not_show_where_the_reader_keeps_things(report):
    page = report[0].index.read_text()
    assert str(Path.home()) not in page
    assert str(report[1]) not in page


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "there is no report in"),
        ("{", "is not what `noisescale paper` writes"),
        ('{"scale": "smoke"}', "is not what `noisescale paper` writes"),
        ("[]", "is not what `noisescale paper` writes"),
    ],
)
def test_a_folder_without_a_report_is_refused(tmp_path, content, told):
    if content is not None:
        (tmp_path / "claims.json").write_text(content)
    with pytest.raises(InputError, match=told):
        redraw(tmp_path)


def test_bad_requests_fail_before_any_work(tmp_path):
    def refuse(match, **changes):
        with pytest.raises(InputError, match=match):
            run_paper(tmp_path / "out", **({"scale": "smoke"} | changes))

    refuse("there is no section 'Z'", only=["Z"])
    refuse("seeds must be at least 1, got 0", seeds=0)
    refuse("scale must be one of check, smoke, quick, full, got 'huge'", scale="huge")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written to .* choose another --out"):
        run_paper(tmp_path / "file" / "out", scale="smoke")


def test_sections_are_keyed_by_their_id():
    assert all(key == section.id for key, section in SECTIONS.items())
