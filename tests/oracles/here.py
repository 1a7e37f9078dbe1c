"""The simplest engine there is."""

from concurrent.futures import Future

from noisescale.jobs.isolation import _resolve


class Here:
    """Executes in this very process: an engine that noisescale has never heard of."""

    def __init__(self):
        self.calls = 0
        self.stopped = False

    def submit(self, work, *args):
        self.calls += 1
        future = Future()
        future.set_result(_resolve(work)(*args))
        return future

    def capacity(self):
        return 1

    def restart(self):
        pass

    def stop(self):
        self.stopped = True
