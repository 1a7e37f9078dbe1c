"""The large-batch tuner, random search and TPE, at equal budgets.

All train a 784-100-10 network on N = 1,000 MNIST images for 20 epochs a run and score on 4,000
others. The tuner runs with a margin of 0.002; random search (scikit-learn's
``ParameterSampler``) and Optuna's TPE (in the first repeat alone) may spend as many updates as it
took. They draw batch size, learning rate and 1 - m log-uniformly (a draw that
what is left of the budget does not pay for is drawn again), one seed a draw, and take the best
score. Each final recipe is then judged by test accuracy over fresh seeds, which none has seen. Five
repeats with seeds of their own.

Then what ``start=`` saves: the prediction of the paper's law, a measured critical batch size and a
recipe that was tuned before, on MNIST and on the examples (digits; ``examples/tune_jax.py``,
``tune_sklearn.py``, whose network has no gradients of single examples, and ``tune_torch.py``).

It needs what ``make bench`` installs (Optuna, PyTorch) and takes about eight minutes on two idle
cores; what it says (scores, updates) does not depend on the load, but for ``seconds``.
``TUNE_REPEATS`` changes the number of repeats, ``TUNE_TINY=1`` makes everything small, to try it.
``python tools/measured.py --write`` then puts it into docs/tuning.md.
"""

import importlib
import importlib.util
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import loguniform
from sklearn.model_selection import ParameterSampler

import noisescale as ns
from noisescale.data import load_mnist
from noisescale.jobs.engines import open_engine
from noisescale.jobs.progress import Progress
from noisescale.noise.batch_law import PAPER_LAW
from noisescale.tune import train_function
from noisescale.tune.scores import scores_of

sys.path.insert(0, str(Path(__file__).parent.parent))

TINY = os.environ.get("TUNE_TINY") == "1"
N_TRAIN, N_VALIDATION, EPOCHS = (200, 300, 2.0) if TINY else (1_000, 4_000, 20.0)
FRESH, N_FRESH = 10_000, 2 if TINY else 5
WIDTHS = (784, 20, 10) if TINY else (784, 100, 10)
DRAWS = 60  # more than the tuner's runs; most budgets end before
RESULTS = Path(__file__).parent / "results" / ("tune-tiny.json" if TINY else "tune.json")
MARGIN = 0.002
EXAMPLES = ("tune_jax", "tune_sklearn", "tune_torch")


class Bench:
    """The training functions, and where their runs are made and kept."""

    def __init__(self, engine, store):
        data = load_mnist()
        drawn = data.subset(n_train=N_TRAIN + N_VALIDATION, seed=0)
        x, y = drawn.x_train, drawn.y_train
        self.network = ns.DenseNetwork(WIDTHS)
        self.training = x[:N_TRAIN], y[:N_TRAIN]
        held_out = (x[N_TRAIN:], y[N_TRAIN:])
        test = (data.x_test, data.y_test)
        self.train = train_function(self.network, self.network.init, self.training, held_out)
        self.test = train_function(self.network, self.network.init, self.training, test)
        self.engine, self.store = engine, store

    def scores(self, train, recipes, n_seeds, first_seed):
        """(recipes, seeds)."""
        found = scores_of(
            train,
            N_TRAIN,
            recipes,
            epochs=EPOCHS,
            n_seeds=n_seeds,
            first_seed=first_seed,
            store=self.store,
            engine=self.engine,
            progress=Progress(),
        )
        return np.where(np.isnan(found), 0.1, found)  # diverged: chance

    def tuned(self, **options):
        return ns.tune_large_batch(
            self.train, N_TRAIN, epochs=EPOCHS, store=self.store, executor=self.engine, **options
        )


def steps_of(recipe):
    return max(1, round(EPOCHS * N_TRAIN / recipe.batch_size))


def recipe_of(batch_size, learning_rate, slowness):
    return ns.Recipe(
        learning_rate=learning_rate,
        batch_size=max(1, round(batch_size)),
        n_train=N_TRAIN,
        momentum=1 - slowness,
        epochs=EPOCHS,
    )


def random_search(bench, budget, repeat):
    """The best of as many draws as the budget pays for."""
    space = {
        "batch_size": loguniform(1, N_TRAIN),
        "learning_rate": loguniform(1e-3, 10),
        "slowness": loguniform(0.005, 1),
    }
    recipes, spent = [], 0
    for draw in ParameterSampler(space, DRAWS, random_state=repeat):
        recipe = recipe_of(**draw)
        if spent + steps_of(recipe) <= budget:  # else too dear for what is left: draw again
            recipes.append(recipe)
            spent += steps_of(recipe)
    scores = bench.scores(bench.train, recipes, 1, 100 * repeat)[:, 0]
    return recipes[int(np.argmax(scores))], len(recipes), spent


def tpe(bench, budget, repeat):
    """Optuna's default sampler, one draw after the other."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=repeat)
    )
    best, n, spent, asked = (-np.inf, None), 0, 0, 0
    while asked < DRAWS:
        trial = study.ask()
        asked += 1
        recipe = recipe_of(
            trial.suggest_float("batch_size", 1, N_TRAIN, log=True),
            trial.suggest_float("learning_rate", 1e-3, 10, log=True),
            trial.suggest_float("slowness", 0.005, 1, log=True),
        )
        if spent + steps_of(recipe) > budget:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        score = float(bench.scores(bench.train, [recipe], 1, 100 * repeat)[0, 0])
        study.tell(trial, score)
        n, spent = n + 1, spent + steps_of(recipe)
        best = max(best, (score, recipe), key=lambda pair: pair[0])
    return best[1], n, spent


def one_repeat(bench, repeat):
    """A row for each method."""
    made = {}
    began = time.perf_counter()
    found = bench.tuned(tolerance=MARGIN, first_seed=100 * repeat)
    seconds, budget = time.perf_counter() - began, found.n_updates
    made["tuner"] = found.recipe, found.n_runs, budget, seconds, found.inconclusive
    searches = {"random search": random_search} | ({"TPE": tpe} if repeat == 0 else {})
    for name, search in searches.items():
        began = time.perf_counter()
        recipe, n, spent = search(bench, budget, repeat)
        made[name] = recipe, n, spent, time.perf_counter() - began, None
    recipes = [row[0] for row in made.values()]
    fresh = bench.scores(bench.test, recipes, N_FRESH, FRESH + 100 * repeat)
    for (name, (recipe, n, spent, seconds, reason)), scores in zip(
        made.items(), fresh, strict=True
    ):
        yield {
            "repeat": repeat,
            "method": name,
            "batch_size": recipe.batch_size,
            "learning_rate": recipe.learning_rate,
            "momentum": recipe.momentum,
            "updates_a_run": steps_of(recipe),
            "test_accuracy": float(scores.mean()),
            "test_accuracy_std": float(scores.std(ddof=1) / np.sqrt(len(scores))),
            "runs": n,
            "updates": spent,
            "inconclusive": reason,
            "seconds": seconds,
        }


def summary_of(rows):
    summary = {}
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == name]
        accuracies = [row["test_accuracy"] for row in mine]
        summary[name] = {
            "repeats": len(mine),
            "test_accuracy": statistics.mean(accuracies),
            "spread": statistics.stdev(accuracies) if len(mine) > 1 else None,
            "batch_sizes": sorted(row["batch_size"] for row in mine),
            "median_updates_a_run": statistics.median(row["updates_a_run"] for row in mine),
            "median_updates": statistics.median(row["updates"] for row in mine),
            "inconclusive": sum(row["inconclusive"] is not None for row in mine),
        }
    return summary


def starts(bench, recipe):
    """Updates that the tuner takes by where stage 1 begins."""
    seed = 100_000  # seeds that nothing above has used
    law = PAPER_LAW.predict(learning_rate=0.1, momentum=0.9, n_train=N_TRAIN, epochs=EPOCHS)
    given = {
        "none": None,
        "the law's prediction": law,
        "critical batch size": critical_batch_size(bench.network, bench.training),
        "a recipe": replace(recipe, notes=()),
    }
    for name, start in given.items():
        yield _start_row("MNIST", name, start, bench.tuned(start=start, first_seed=seed))
    for name in EXAMPLES:
        example = importlib.import_module(f"examples.{name}")
        found = None
        for start_name, start in example_starts(example):
            if start_name == "critical batch size" and start is None:
                continue  # not resolved
            if start_name == "a recipe":
                start = replace(found.recipe, notes=())
            tuned = ns.tune_large_batch(
                example.train,
                example.train.n_train,
                epochs=EPOCHS,
                start=start,
                executor=bench.engine,
                first_seed=seed,
            )
            found = tuned if start_name == "none" else found
            yield _start_row(f"digits, {name}", start_name, start, tuned)


def example_starts(example):
    """Where to begin, by name; a recipe is what the search from nowhere ended with."""
    yield "none", None
    at = {"learning_rate": 0.1, "momentum": 0.9, "n_train": example.train.n_train}
    yield "the law's prediction", PAPER_LAW.predict(**at, epochs=EPOCHS)
    if hasattr(example, "network"):
        yield "critical batch size", critical_batch_size(example.network, example.train.train_data)
    if hasattr(example, "make_module"):
        yield "critical batch size", critical_batch_size_of_module(example)
    yield "a recipe", None


def critical_batch_size_of_module(example):
    """The same of a PyTorch module."""
    import torch

    import noisescale.torch as nst

    torch.manual_seed(0)
    n, module = example.train.n_train, example.make_module()
    x, y = example.x[:n], example.y[:n]
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for batch in torch.randperm(n)[: n // 32 * 32].split(32):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
        optimiser.step()
    return nst.gradient_noise(module, (x, y)).critical_batch_size


def critical_batch_size(network, data):
    """tr S/|G|^2 after the first epoch of a run with batches of 32."""
    epoch = max(1, len(data[1]) // 32)
    run = ns.train(
        network, network.init(0), data, batch_size=32, learning_rate=0.1, steps=epoch, seed=0
    )
    return ns.gradient_noise(network, run.params, data).critical_batch_size


def _start_row(data, name, start, found):
    return {
        "data": data,
        "start": name,
        "near": getattr(start, "batch_size", getattr(start, "value", start)),
        "updates": found.n_updates,
        "first": found.start.batch_size,
        "batch_size": found.recipe.batch_size,
        "inconclusive": found.inconclusive,
    }


def main():
    missing = [name for name in ("optuna", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"{' and '.join(missing)} not installed: `make bench` has an environment with it.")
    began, repeats = time.perf_counter(), int(os.environ.get("TUNE_REPEATS", "5"))
    engine = open_engine(workers=2)
    rows = []
    with tempfile.TemporaryDirectory() as folder, ns.RunStore(folder, write=True) as store:
        bench = Bench(engine, store)
        for repeat in range(repeats):
            for row in one_repeat(bench, repeat):
                rows.append(row)
                print(json.dumps(row), flush=True)
        first = next(row for row in rows if row["method"] == "tuner")
        recipe = recipe_of(first["batch_size"], first["learning_rate"], 1 - first["momentum"])
        begun = []
        for row in starts(bench, recipe):
            begun.append(row)
            print(json.dumps(row), flush=True)
    engine.stop()
    summary = summary_of(rows)
    for name, numbers in summary.items():
        print(name, numbers)
    document = {
        "machine": platform.machine(),
        "seconds": time.perf_counter() - began,
        "network": "-".join(map(str, WIDTHS)),
        "n_train": N_TRAIN,
        "epochs": EPOCHS,
        "margin": MARGIN,
        "summary": summary,
        "starts": begun,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
