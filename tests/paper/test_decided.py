"""Which data decide a claim."""

from dataclasses import replace

import pytest

from noisescale.paper import SECTIONS, appendix_c
from noisescale.paper.claims import Verdict
from noisescale.paper.section import Circumstances
from noisescale.training import SAMPLERS
from noisescale.uncertainty import Estimate


def test_a_claim_is_decided_by_its_data_whatever_the_scale_is_called():
    quick = Circumstances("quick", 3, "mnist", True, "abc")
    assert quick.decides(enough=True)
    assert not quick.decides(enough=False)
    assert not quick.decides(enough=True, seeds=5)
    assert not replace(quick, seeds=2).decides(enough=True)
    assert not replace(quick, complete=False).decides(enough=True)
    assert replace(quick, scale="full").decidable
    assert not quick.decidable  # of claims about training to the end


def verdicts(data):
    return {judgement.id: judgement.verdict for judgement in appendix_c.judge(data).judgements}


@pytest.mark.parametrize("std", [0.05, 0.3])
def test_the_variance_law_is_decided_by_its_precision(std):
    at = Circumstances("quick", 3, "mnist", True, "abc")
    ratios = {
        (when, sampler, B): Estimate(float(B < 1_000), std, n=9)
        for when in appendix_c._POINTS
        for sampler in SAMPLERS
        for B in appendix_c._BATCH_SIZES
    }
    noise = [(appendix_c.Noise(2.0, 0.01, 30.0, ""), appendix_c.Noise(1.0, 0.01, 30.0, ""))] * 3
    judged = {
        j.id: j.verdict for j in appendix_c.judge(appendix_c.Data(at, ratios, noise)).judgements
    }
    assert judged["C28"] == (Verdict.REPRODUCED if std < 0.1 else Verdict.UNDECIDED)
    assert judged["C40"] == Verdict.REPRODUCED
    small = appendix_c.Data(replace(at, scale="smoke"), ratios, noise)
    assert verdicts(small)["C40"] == Verdict.UNDECIDED


def test_quick_takes_the_seeds_that_decide_where_they_cost_little():
    assert {s.id for s in SECTIONS.values() if s.quick_seeds >= 3} == {"1", "2", "C"}
