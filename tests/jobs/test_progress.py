import io

import pytest
from rich.console import Console

from noisescale.jobs.progress import BarProgress, LineProgress, Progress, chosen_progress


class Run:
    cost = 1.0

    def merit(self, final):
        return (final["score"], f"score {final['score']:g}") if "score" in final else None


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=200)


@pytest.mark.parametrize("kind", [LineProgress, BarProgress])
def test_runs_are_told_by_their_own_merit(console, kind):
    progress = kind(console)
    runs = [Run() for _ in range(4)]
    with progress.sweep(runs, n_stored=3):
        progress.finished(runs[0], {"status": "done", "final": {"score": 0.25}})
        progress.finished(runs[1], {"status": "done", "final": {"score": 0.5}})
        progress.finished(runs[2], {"status": "done", "final": {}})
        progress.finished(runs[3], {"status": "failed", "final": {}})
        told = str(progress._tally)
    progress.decided("so be it")
    progress.close()
    assert told == "4 of 4 runs, 1 failed, best score 0.5"
    assert "so be it" in console.file.getvalue()
    if kind is LineProgress:
        assert "4 runs to make, 3 are in the store" in console.file.getvalue()
        assert told in console.file.getvalue()


def test_true_false_or_ones_own(capsys):
    class Own(Progress):
        closed = False

        def close(self):
            self.closed = True

    own = Own()
    with chosen_progress(own) as shown:
        assert shown is own
    assert not own.closed
    with chosen_progress(False) as shown:
        shown.line("hush")
    with chosen_progress(True) as shown:
        shown.line("hear")
    assert capsys.readouterr().err == "hear\n"
