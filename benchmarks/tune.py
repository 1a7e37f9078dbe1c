"""The large-batch tuner against random search, at the same budget of gradient updates.

Both train the paper's network on N = 1,000 MNIST images for 20 epochs a run, score on 4,000 other
images, and may spend as many updates as the tuner took. Random search (scikit-learn's
``ParameterSampler``) draws batch size, learning rate and 1 - m log-uniformly (a draw that what is
left of the budget does not pay for is drawn again), one seed a draw, and takes the best score. Each
final recipe is then judged by test accuracy over fresh seeds, which neither has seen. Five repeats
with seeds of their own. ``TUNE_REPEATS`` changes their number.
"""

import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.stats import loguniform
from sklearn.model_selection import ParameterSampler

import noisescale as ns
from noisescale.data import load_mnist
from noisescale.jobs.engines import open_engine
from noisescale.jobs.progress import Progress
from noisescale.tune import train_function
from noisescale.tune.scores import scores_of

N_TRAIN, N_VALIDATION, EPOCHS = 1_000, 4_000, 20.0
FRESH, N_FRESH = 10_000, 5
DRAWS = 60  # more than the tuner's runs; most budgets end before
RESULTS = Path(__file__).parent / "results" / "tune.json"


def random_search(train, budget: int, repeat: int, engine, store) -> tuple[ns.Recipe, int]:
    """The best of as many draws as the budget pays for."""
    space = {
        "batch_size": loguniform(1, N_TRAIN),
        "learning_rate": loguniform(1e-3, 10),
        "slowness": loguniform(0.005, 1),
    }
    recipes, spent = [], 0
    for draw in ParameterSampler(space, DRAWS, random_state=repeat):
        recipe = ns.Recipe(
            learning_rate=draw["learning_rate"],
            batch_size=max(1, round(draw["batch_size"])),
            n_train=N_TRAIN,
            momentum=1 - draw["slowness"],
            epochs=EPOCHS,
        )
        steps = max(1, round(EPOCHS * N_TRAIN / recipe.batch_size))
        if spent + steps > budget:  # too dear for what is left: draw again
            continue
        recipes.append(recipe)
        spent += steps
    scores = scores_of(
        train,
        N_TRAIN,
        recipes,
        epochs=EPOCHS,
        n_seeds=1,
        first_seed=100 * repeat,
        store=store,
        engine=engine,
        progress=Progress(),
    )[:, 0]
    return recipes[int(np.nanargmax(scores))], len(recipes)


def main() -> None:
    repeats = int(os.environ.get("TUNE_REPEATS", "5"))
    data = load_mnist()
    drawn = data.subset(n_train=N_TRAIN + N_VALIDATION, seed=0)
    x, y = drawn.x_train, drawn.y_train
    network = ns.paper_network()
    training = x[:N_TRAIN], y[:N_TRAIN]
    train = train_function(network, network.init, training, (x[N_TRAIN:], y[N_TRAIN:]))
    test = train_function(network, network.init, training, (data.x_test, data.y_test))
    engine = open_engine(workers=2)
    rows = []
    with tempfile.TemporaryDirectory() as folder, ns.RunStore(folder, write=True) as store:
        for repeat in range(repeats):
            began = time.perf_counter()
            tuned = ns.tune_large_batch(
                train,
                N_TRAIN,
                epochs=EPOCHS,
                first_seed=100 * repeat,
                store=store,
                executor=engine,
            )
            ours = time.perf_counter() - began
            began = time.perf_counter()
            drawn_recipe, n_draws = random_search(train, tuned.n_updates, repeat, engine, store)
            theirs = time.perf_counter() - began
            fresh = scores_of(
                test,
                N_TRAIN,
                [tuned.recipe, drawn_recipe],
                epochs=EPOCHS,
                n_seeds=N_FRESH,
                first_seed=FRESH + 100 * repeat,
                store=store,
                engine=engine,
                progress=Progress(),
            )
            fresh = np.where(np.isnan(fresh), 0.1, fresh)
            for name, recipe, scores, n, seconds in (
                ("tuner", tuned.recipe, fresh[0], tuned.n_runs, ours),
                ("random search", drawn_recipe, fresh[1], n_draws, theirs),
            ):
                rows.append(
                    {
                        "repeat": repeat,
                        "method": name,
                        "batch_size": recipe.batch_size,
                        "learning_rate": recipe.learning_rate,
                        "momentum": recipe.momentum,
                        "updates_a_run": max(1, round(EPOCHS * N_TRAIN / recipe.batch_size)),
                        "test_accuracy": float(scores.mean()),
                        "test_accuracy_error": float(scores.std(ddof=1) / np.sqrt(len(scores))),
                        "runs": n,
                        "budget_updates": tuned.n_updates,
                        "seconds": seconds,
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
    engine.stop()
    summary = {}
    for name in ("tuner", "random search"):
        mine = [row for row in rows if row["method"] == name]
        accuracies = [row["test_accuracy"] for row in mine]
        summary[name] = {
            "test_accuracy": statistics.mean(accuracies),
            "spread": statistics.stdev(accuracies) if len(mine) > 1 else None,
            "batch_sizes": sorted(row["batch_size"] for row in mine),
            "median_updates_a_run": statistics.median(row["updates_a_run"] for row in mine),
        }
        print(name, summary[name])
    document = {"machine": platform.machine(), "epochs": EPOCHS, "summary": summary, "rows": rows}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
