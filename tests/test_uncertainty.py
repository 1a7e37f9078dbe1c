import math

import numpy as np
import pytest
from scipy import stats

from noisescale.uncertainty import Estimate, mean_of


def test_the_mean_of_values_with_its_standard_error():
    values = np.array([1.0, 1.1, 0.9, 1.3])
    found = mean_of(values)
    assert found.value == pytest.approx(values.mean())
    assert found.std == pytest.approx(stats.sem(values))
    assert found.n == 4
    assert math.isnan(mean_of([1.0]).std)


def test_the_interval_is_students():
    values = np.array([1.0, 1.1, 0.9, 1.3])
    found = mean_of(values).interval()
    low, high = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert 1.0 in found
    assert 5.0 not in found
    assert not mean_of([1.0]).interval().has_interval


def test_estimates_know_how_sure_they_are():
    sure = mean_of([1.0, 1.1, 0.9])
    assert sure.above(0, by=2) is True
    assert sure.above(2, by=2) is False
    assert sure.above(1.01, by=2) is None
    assert mean_of([1.0]).above(0, by=2) is None


def test_in_words_and_as_plain_values():
    assert str(mean_of([1.0, 1.1, 0.9])) == "1 ± 0.058"
    assert str(Estimate(1.043, low=0.986, high=1.1)) == "1.04 [0.986, 1.1]"
    assert str(Estimate(2.0)) == "2"
    assert str(Estimate(math.nan, low=12.34, high=math.inf)) == "at least 12.3"
    assert str(Estimate(math.nan, low=0.0, high=math.inf)) == "not resolved"
    assert str(Estimate(math.nan)) == "nan"
    assert Estimate(2.0, 0.5).to_dict() == {
        "value": 2.0,
        "std": 0.5,
        "low": None,
        "high": None,
        "n": None,
    }
