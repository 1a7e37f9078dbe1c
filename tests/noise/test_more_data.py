"""More data: against the law itself, solved by bisection, and against what was measured."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

import noisescale as ns
from noisescale.noise.batch_law import PAPER_LAW
from noisescale.noise.more_data import EPOCHS, POWER, SHARPNESS, batch_for_more_data


def law(a, N, steps_of, c=EPOCHS.value, alpha=POWER.value):
    """The B with B^q = (a N^alpha)^q + (c N/T)^q, where T may depend on B."""

    def excess(B):
        return 1 - (a * N**alpha / B) ** SHARPNESS - (c * N / steps_of(B) / B) ** SHARPNESS

    return brentq(excess, 1e-9, 1e12, rtol=1e-14)


@given(
    a=st.floats(0.5, 50),
    N=st.integers(1000, 10**6),
    ratio=st.floats(0.1, 100),
    epochs=st.floats(16, 1000),
    to_epochs=st.floats(16, 1000),
)
def test_a_recipe_that_obeys_the_law_is_led_along_it(a, N, ratio, epochs, to_epochs):
    more = max(1, round(ratio * N))
    B = law(a, N, lambda B: epochs * N / B)
    found = batch_for_more_data(B, n_train=(N, more), epochs=epochs, to_epochs=to_epochs)
    assert found.batch_size == pytest.approx(law(a, more, lambda B: to_epochs * more / B), rel=1e-6)
    assert found.low <= found.batch_size <= found.high
    steps = 1000.0
    found = batch_for_more_data(B, n_train=(N, more), epochs=epochs, to_steps=steps)
    assert found.batch_size == pytest.approx(law(a, more, lambda _: steps), rel=1e-6)
    noise = a * more**POWER.value
    assert found.branch == (
        "noise" if noise >= EPOCHS.value * more / steps * (1 - 1e-9) else "epochs"
    )
    assert found.low <= found.batch_size <= found.high


@pytest.mark.parametrize("epochs", [2, 15, 16, 300])
def test_with_as_many_epochs_neither_constant_matters(epochs):
    found = batch_for_more_data(100, n_train=(1000, 8000), epochs=epochs, to_epochs=epochs)
    assert found.batch_size == pytest.approx(100 * 8**POWER.value, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((100 * 8**POWER.low, 100 * 8**POWER.high))
    assert found.has_answer


def test_a_recipe_that_fits_early_stands_for_itself():
    # 5 epochs, fewer than the paper's network takes: by updates the batch goes as N/T alone.
    found = batch_for_more_data(100, n_train=(1000, 3000), epochs=5, to_steps=25)
    assert found.branch == "epochs"
    assert found.batch_size == pytest.approx(100 * 3 * 50 / 25)
    assert found.low == pytest.approx(100 * 3**POWER.low)
    too_few = batch_for_more_data(100, n_train=(1000, 3000), epochs=300, to_epochs=10)
    assert not too_few.has_answer


@pytest.mark.parametrize("to_epochs", [15, 15.7, 16, 18.2, 18.3, 25, 60])
def test_the_interval_holds_what_every_c_would_say(to_epochs):
    """On a grid of c and alpha within their intervals, by bisection."""
    found = batch_for_more_data(256, n_train=(50_000, 200_000), epochs=90, to_epochs=to_epochs)
    for c in np.linspace(EPOCHS.low, EPOCHS.high, 15):
        for alpha in (POWER.low, POWER.value, POWER.high):
            if c >= to_epochs:  # no batch is best: the larger, the nearer it comes
                assert found.high == math.inf
                continue
            a = 256 * (1 - (c / 90) ** SHARPNESS) ** (1 / SHARPNESS) / 50_000**alpha
            B = law(a, 200_000, lambda B: to_epochs * 200_000 / B, c=c, alpha=alpha)
            assert found.low * (1 - 1e-9) <= B <= found.high * (1 + 1e-9)
    assert math.isfinite(found.high) is (to_epochs > EPOCHS.high)
    assert found.has_answer is (to_epochs > EPOCHS.value)


def test_no_upper_end_is_said_wherever_it_is_shown():
    near = RECIPE.scaled_to(n_train=200_000, epochs=16)
    assert near.batch_size_interval[1] == math.inf
    shown = json.loads(json.dumps(near.to_dict(), allow_nan=False))
    assert shown["batch_size_interval"] == [pytest.approx(322.7, abs=0.1), None]
    assert "[323, no upper end] is what one point leaves open" in near.notes[0]
    assert "16 epochs are hardly more than the 15.6" in near.notes[1]
    few = RECIPE.scaled_to(n_train=200_000, epochs=15)
    assert few.batch_size == round(256 * 4**POWER.value)
    assert "[323, no upper end]" in few.notes[0]
    assert "no answer below about 15.6, where its batch grows without limit" in few.notes[1]
    enough = RECIPE.scaled_to(n_train=200_000, epochs=18.3)
    assert "[323, 1.16e+03]" in enough.notes[0]
    # As many epochs as before, however few: nothing is open but alpha.
    same = batch_for_more_data(100, n_train=(1000, 8000), epochs=5, to_epochs=5)
    assert math.isfinite(same.high)
    shorter = batch_for_more_data(100, n_train=(1000, 8000), epochs=5, to_epochs=4)
    assert (shorter.has_answer, shorter.high, shorter.needed) == (False, math.inf, 5)


@pytest.mark.parametrize(("N", "measured"), [(20_000, 50), (36_000, 72), (60_000, 90)])
def test_from_one_point_to_the_peaks_of_figure_6(N, measured):
    # B = 22 was best at N = 1,000, all with 10,000 updates; the law is good to about 0.2 in ln B.
    found = batch_for_more_data(22, n_train=(1000, N), epochs=220, to_steps=10_000)
    assert found.batch_size == pytest.approx(measured, rel=0.3)
    assert found.low <= measured <= found.high


RECIPE = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000, momentum=0.9, epochs=90)


def test_recipes_say_what_binds_and_what_is_open():
    same = RECIPE.scaled_to(n_train=400_000, epochs=90)
    assert (same.batch_size, same.branch) == (round(256 * 8**POWER.value), "noise")
    assert same.batch_size_interval == pytest.approx((256 * 8**POWER.low, 256 * 8**POWER.high))
    assert "with this recipe as its one point" in same.notes[0]
    assert "the noise binds" in same.notes[1]
    few = RECIPE.scaled_to(n_train=400_000, steps=5_000)
    assert few.branch == "epochs"
    assert few.epochs == pytest.approx(5_000 * few.batch_size / 400_000)
    assert "the epochs bind" in few.notes[1]
    assert few.to_dict()["branch"] == "epochs"
    short = RECIPE.scaled_to(n_train=400_000, epochs=3)
    assert any("the law has no answer" in note for note in short.notes)
    unknown = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000).scaled_to(
        n_train=400_000, epochs=90
    )
    assert unknown.batch_size == same.batch_size
    assert "taken to have had as many epochs" in unknown.notes[1]


def test_more_data_and_more_devices_at_once():
    grown = RECIPE.scaled_to(n_train=400_000, epochs=90)
    both = RECIPE.scaled_to(n_train=400_000, epochs=90, batch_size=2048)
    assert both.learning_rate == pytest.approx(0.1 * 2048 / grown.batch_size)
    assert both.notes[0] == grown.notes[0]
    held = RECIPE.scaled_to(n_train=400_000, epochs=90, via="learning_rate")
    assert held.batch_size == 256
    assert held.learning_rate == pytest.approx(0.1 * 256 / grown.batch_size)


def test_a_law_of_ones_own_is_taken_at_its_word():
    recipe = ns.Recipe(
        learning_rate=0.1, dampening=0.5, batch_size=256, n_train=5_000, momentum=0.9
    )
    told = PAPER_LAW.predict(learning_rate=0.05, momentum=0.9, n_train=10_000, epochs=100)
    found = recipe.scaled_to(n_train=10_000, epochs=100, law=PAPER_LAW)
    assert found.batch_size == round(told.value)
    assert found.batch_size_interval == (told.low, told.high)
    assert found.notes[0] == f"by your law B = {told.summary}"
    few = recipe.scaled_to(n_train=10_000, epochs=3, law=PAPER_LAW)
    assert "3 epochs are fewer than" in few.notes[1]


@pytest.mark.parametrize(("N", "steps"), [(2_000, 10_000), (60_000, 10_000), (60_000, 2_500)])
def test_one_point_of_the_papers_own_law_leads_along_it(N, steps):
    setting = {"learning_rate": 0.1, "momentum": 0.9}
    first = PAPER_LAW.predict(**setting, n_train=1_000, steps=10_000).value
    found = batch_for_more_data(
        first, n_train=(1_000, N), epochs=10_000 * first / 1_000, to_steps=steps
    )
    told = PAPER_LAW.predict(**setting, n_train=N, steps=steps)
    assert found.batch_size == pytest.approx(told.value, rel=1e-9)
    assert found.branch == told.branch
