# How a run came about may differ between two sweeps; what came out may not.
CIRCUMSTANCES = ["duration", "host", "finished", "versions"]


def results(frame):
    return frame.drop(columns=CIRCUMSTANCES)
