import sys
from itertools import count, repeat

import pytest

from noisescale.errors import InputError
from noisescale.sweep import RunConfig, load_plan, make_plan, run_sweep

SHARED = {"data": "digits", "hidden_widths": (), "learning_rate": 0.1, "steps": 10}
BASIC = RunConfig(**SHARED, batch_size=8)


def test_grids_zips_rules_and_seeds():
    plan = make_plan(
        SHARED | {"learning_rate": 0.5, "steps": "100 / learning_rate"},
        grid={"batch_size": [4, 8]},
        zipped={"momentum": [0.0, 0.9], "prior_precision": [0.0, 0.1]},
        seeds=3,
    )
    assert len(plan) == 2 * 2 * 3 == len({run.key for run in plan})
    assert {run.steps for run in plan} == {200}
    pairs = {(run.momentum, run.prior_precision) for run in plan}
    assert pairs == {(0.0, 0.0), (0.9, 0.1)}
    assert {run.seed for run in plan} == {0, 1, 2}


def test_functions_of_the_other_fields():
    plan = make_plan(
        {**SHARED, "steps": lambda run: 10_000 / run["learning_rate"]} | {"batch_size": 2},
        grid={"seed": [5]},
    )
    assert [run.steps for run in plan] == [100_000]
    product = make_plan({**SHARED, "batch_size": "80 * learning_rate"})
    assert product[0].batch_size == 8


def test_data_of_ones_own():
    (run,) = make_plan(SHARED | {"data": "oracles.unruly:small", "batch_size": 4})
    assert (run.n_train, run.n_test) == (40, 10)


def test_the_same_run_twice_is_one_run():
    assert len(make_plan(SHARED, grid={"batch_size": [8, 8]})) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": {"batchsize": [1]}}, "a run has no field 'batchsize'"),
        ({"grid": {"batch_size": []}}, "the grid of batch_size is empty"),
        ({"grid": {"batch_size": [5000]}}, "batch_size must be at most 1438"),
        ({"grid": {"batch_size": [4], "steps": [-1]}}, "the field steps is given twice"),
        ({"run": {"steps": -1}}, "steps must be at least 0, got -1"),
        ({"run": {"learning_rate": "fast"}}, "learning_rate must be a number or a rule"),
        ({"run": {"steps": "10 / spam"}}, "steps depends on 'spam'"),
        ({"run": {"n_train": 10**6}}, "n_train must be at most 1438, all of digits, got 1000000"),
        ({"run": {"data": "cifar"}}, "there is no data set 'cifar'"),
        ({"run": {"model": "conv"}}, "model must be 'dense' or module:function, got 'conv'"),
        ({"run": {"initialisation": "magic"}}, "initialisation must be one of"),
        ({"run": {"hidden_widths": 800}}, "hidden_widths must be a list of widths, got 800"),
        ({"run": {"evaluate_at": [99]}}, "evaluate_at must lie between 0 and steps = 10"),
        ({"grid": {"batch_size": 4}}, "the grid of batch_size must be a list of values, got 4"),
        ({"zipped": {"momentum": [0, 0.5], "seed": [1]}}, "momentum has 2, seed has 1"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"seeds": 10**9}, "seeds must be at most 1000000, got 1000000000"),
        ({"seeds": 2, "grid": {"seed": [5]}}, "the field seed is given twice"),
        ({"run": {"model": 5}}, "model must be a name, got 5"),
        ({"run": {"data": ["digits"]}}, "data must be a name, got ['digits']"),
        ({"run": {"model": "nosuch:x"}}, "model 'nosuch:x' cannot be imported: No module named"),
        ({"run": {"model": "oracles.unruly:nothing"}}, "has no attribute 'nothing'"),
        ({"run": {"model": "oracles.unruly:NO_FUNCTION"}}, "must be a function, got int"),
        ({"run": {"data": ":"}}, "data ':' cannot be imported"),
        ({"run": {"data": "oracles.unruly:explodes"}}, "cannot be loaded: OSError: no disk"),
        ({"run": {"data": "oracles.unruly:misaligned"}}, "50 rows in x_train and 47 labels"),
        ({"run": {"data": "oracles.unruly:three_arrays"}}, "must be four arrays"),
        ({"run": {"data": "oracles.unruly:with_nan"}}, "must be a table of finite numbers"),
        ({"run": {"data": "oracles.unruly:negative_labels"}}, "must be class numbers from 0 on"),
        ({"run": {"data": "oracles.unruly:other_width"}}, "2 features for training and 3 for"),
        ({"run": {"steps": "1e400 / learning_rate"}}, "steps comes out as inf"),
        (
            {"run": {"n_evaluations": -3, "evaluate_at": "final"}},
            "n_evaluations must be at least 1",
        ),
        ({"grid": {}}, "the plan says nothing of batch_size"),
        (
            {"grid": {"batch_size": [4], "seed": range(1001), "n_train": range(1, 1001)}},
            "the plan must have at most 1,000,000 runs, got 1,001,000: split its grid",
        ),
        (
            {"seeds": 1001, "zipped": {"n_train": range(1, 1001), "momentum": [0.5] * 1000}},
            "the plan must have at most 1,000,000 runs, got 1,001,000",
        ),
        ({"seeds": count()}, "the grid of seed must have at most 1,000,000 values"),
        ({"grid": {"batch_size": count(1)}}, "the grid of batch_size must have at m"),
        ({"zipped": {"momentum": count()}}, "the zip of momentum must have at most"),
        ({"run": {"hidden_widths": count(1)}}, "hidden_widths must have at most 1,000 values"),
        ({"run": {"evaluate_at": count(1)}}, "evaluate_at must have at most 1,000,000 values"),
        ({"run": {"n_evaluations": 2**60}}, "n_evaluations must be at most 1,000,000"),
        ({"run": {"steps": sys.exit}}, "steps cannot be computed: its function raised SystemExit"),
    ],
)
def test_bad_plans_name_the_field(change, message):
    change = {"grid": {"batch_size": [4]}} | change
    change["run"] = SHARED | change.get("run", {})
    with pytest.raises(InputError) as error:
        make_plan(**change)
    assert message in str(error.value)


def test_a_plan_from_a_file(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(
        """
        seeds = 2
        [run]
        data = "digits"
        hidden_widths = [16]
        learning_rate = 0.5
        steps = "10 / learning_rate"
        [grid]
        batch_size = [4, 8]
        [zip]
        momentum = [0.0, 0.9]
        prior_precision = [0.0, 1.0]
        """
    )
    assert len(load_plan(path)) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run", "is not TOML"),
        ("[runs]\nsteps = 3", "has an entry 'runs'"),
        ("run = 3", "must have run as a table"),
        (f"run = {'[' * 20_000}{']' * 20_000}", "is nested too deeply"),
        ("[run]\nlearning_rate = 1\nbatch_size = 1\nsteps = nan", "steps must be a whole number"),
    ],
)
def test_bad_plan_files(tmp_path, text, message):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_plan(path)
    with pytest.raises(InputError, match="cannot be read"):
        load_plan(tmp_path / "none.toml")


def test_a_plan_that_never_ends_is_refused(tmp_path):
    with pytest.raises(InputError, match="the plan must have at most 1,000,000 values"):
        run_sweep(repeat(BASIC), tmp_path)
