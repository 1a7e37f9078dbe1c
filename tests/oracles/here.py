"""The simplest engine there is."""

import pickle
from concurrent.futures import Future

from noisescale.jobs.isolation import _resolve


class Here:
    """Executes in this very process: an engine that noisescale has never heard of.

    What goes in and what comes out is pickled, as on its way to a worker.
    """

    def __init__(self):
        self.calls = 0
        self.stopped = False

    def submit(self, work, *args):
        self.calls += 1
        future = Future()
        sent = pickle.loads(pickle.dumps((work, args)))
        future.set_result(pickle.loads(pickle.dumps(_resolve(sent[0])(*sent[1]))))
        return future

    def capacity(self):
        return 1

    def restart(self):
        pass

    def stop(self):
        self.stopped = True
