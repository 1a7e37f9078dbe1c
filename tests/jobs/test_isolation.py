import subprocess
import sys

import pytest

from noisescale.jobs.isolation import call_within, stop_children

PATIENCE = 300  # seconds for what must happen at all


def test_a_worker_whose_parent_was_gone_before_it_began_ends_too():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    code = (
        "import signal, sys\nfrom noisescale.jobs.isolation import start_worker\n"
        "start_worker(int(sys.argv[1]))\nwhile True: signal.pause()"
    )
    worker = subprocess.Popen([sys.executable, "-c", code, str(gone.pid)])
    try:
        assert worker.wait(timeout=PATIENCE) == 1
    finally:
        worker.kill()
        worker.wait()


def test_starting_a_process_does_not_count_against_the_time_of_a_call():
    # To get ready takes longer than the call may; the call itself takes microseconds.
    assert call_within(0.5, "operator:add", 2, 3, owner="test", ready=("time:sleep", 1.0)) == 5


def test_a_call_that_takes_too_long_is_given_up_and_the_next_is_made():
    with pytest.raises(TimeoutError, match="no answer within 0.5 s"):
        call_within(0.5, "time:sleep", 3600, owner="test", ready=("operator:add", 1, 1))
    assert call_within(60, "operator:add", 2, 3, owner="test", ready=("operator:add", 1, 1)) == 5
    stop_children("test")
