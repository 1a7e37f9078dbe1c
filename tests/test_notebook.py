"""Results as notebooks show them."""

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.naive_bayes import GaussianNB

import noisescale as ns
from noisescale.noise.watch.reading import Batch
from noisescale.noise.watch.record import NoiseRecord
from noisescale.notebook import Displayed
from noisescale.tune.result import Decision

RESULTS = Path(__file__).parent.parent / "results"
_EMPTY = {"br", "circle", "g", "path", "use", "rect"}  # may stand without an end


class Page(HTMLParser):
    """The text of well-formed HTML, and the names of its elements."""

    def __init__(self, html):
        super().__init__()
        self.open, self.elements, self.text, self.classes = [], [], "", []
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.classes.append(dict(attributes).get("class"))
        if tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert tag in _EMPTY, tag
        self.elements.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] != "style":
            self.text += f" {data}"


@pytest.fixture(scope="module")
def results():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    y = (x[:, 0] + 0.5 * rng.normal(size=40) > 0).astype(int)
    model = ns.softmax_regression(2, 2)
    trained = ns.train(  # by the whole gradient, to the minimum
        model,
        model.init(0),
        (x, y),
        learning_rate=1.0,
        batch_size=40,
        steps=500,
        prior_precision=1.0,
        test_data=(x, y),
    )
    at = trained.params
    evidence = ns.log_evidence(model, at, (x, y), prior_precision=1.0)
    recipe = ns.Recipe(learning_rate=0.1, batch_size=32, n_train=1_000, momentum=0.9)
    record = NoiseRecord(n_train=1_000)
    for update in range(20):
        batch = Batch(1.2 + 0.1 * rng.random(), 0.6, 1 / 32, n_examples=32, n_units=32.0)
        record.take(batch, update=update, learning_rate=0.1, momentum=0.5)
    grown = recipe.scaled_to(batch_size=64)
    step = Decision(2, "learning_rate", grown, 0.93, 0.002, -0.001, 0.002, 3, True, "B<2> is fine")
    tuned = ns.TuneResult(
        grown, recipe, True, "ended", (step,), 310, 155, 10.0, 6, 900, 1.5, 1e-3, 1e-5, ("a note",)
    )
    return {
        "Evidence": evidence,
        "EvidenceCurve": ns.evidence_curve(model, at, (x, y)),
        "Comparison": ns.compare({"<i>first</i>": -104.2, "second": -101.9}),
        "PrequentialEvidence": ns.prequential_evidence(
            GaussianNB(), load_iris(return_X_y=True), orders=2
        ),
        "AnnealedEvidence": ns.annealed_evidence(
            model, at, (x, y), prior_precision=1.0, n_chains=2, n_temperatures=70, n_leapfrog=2
        ),
        "Spectrum": ns.spectrum(model, at, (x, y), top_k=2, n_steps=4),
        "GradientNoise": ns.gradient_noise(model, at, (x, y), n_eigenvalues=1),
        "Recipe": grown,
        "AdamRecipe": ns.AdamRecipe(learning_rate=1e-3, batch_size=32, n_train=1_000),
        "BatchSizeLaw": ns.PAPER_LAW,
        "BestBatch": ns.PAPER_LAW.predict(learning_rate=0.1, n_train=1_000, steps=10_000),
        "BatchSchedule": ns.BatchSchedule.from_history(
            pd.DataFrame({"step": [0, 100], "critical_batch_size": [70.0, 300.0]}), batch_size=64
        ),
        "Peak": ns.find_peak(pd.read_csv(RESULTS / "figure4.csv"), n_resamples=50),
        "TuneResult": tuned,
        "NoiseRecord": record,
        "Advice": record.advice(),
        "TrainResult": trained,
    }


PICTURED = {
    "EvidenceCurve",
    "PrequentialEvidence",
    "Spectrum",
    "BatchSizeLaw",
    "Peak",
    "TuneResult",
    "NoiseRecord",
    "Advice",
    "TrainResult",
}


def numbers_of(content):
    """The single numbers of a result, as a cell shows them."""
    for value in content.values():
        if isinstance(value, float):
            yield f"{value:.6g}"
        elif isinstance(value, int) and not isinstance(value, bool):
            yield f"{value:,}"


def test_every_result_is_well_formed_and_has_its_numbers(results):
    for name, result in results.items():
        page = Page(result._repr_html_())
        cells = page.text.split()
        missing = [number for number in numbers_of(result.to_dict()) if number not in cells]
        assert not missing, (name, missing)
        assert result._headline() in page.text
        assert ("svg" in page.elements) == (name in PICTURED), name
        for note in result.to_dict().get("notes") or ():
            assert note in page.text


def test_what_comes_from_data_is_escaped(results):
    assert "<i>" not in results["Comparison"]._repr_html_()
    assert "&lt;i&gt;first" in results["Comparison"]._repr_html_()
    assert "B<2>" not in results["TuneResult"]._repr_html_()


def test_long_tables_are_folded_and_thinned_out():
    class Long(Displayed):
        def to_dict(self):
            return {"step": list(range(1_000)), "inner": {"a": 1.5}, "rows": [{"b": 1}, {"b": 2}]}

    page = Long()._repr_html_()
    assert "some of 1000 rows" in page
    assert 30 < page.count("<tr>") < 70
    assert "<td>999</td>" in page
    assert page.count("<details>") == 2
    assert '<th scope="col">b</th>' in page


def test_every_public_result_is_shown():
    public = (getattr(ns, name) for name in ns.__all__)
    results = [kind for kind in public if isinstance(kind, type) and hasattr(kind, "to_dict")]
    hidden = [kind for kind in results if not issubclass(kind, Displayed)]
    assert hidden == [ns.RunConfig]  # a question, not an answer
    assert len(results) > 20
