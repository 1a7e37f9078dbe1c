"""A process that is killed in the middle of a Lanczos estimate."""

import os
import subprocess
import sys

# Says how far it is, and stops for good when eight probes are done.
_TOLD = """
import sys

def told(line):
    print(line, flush=True)
    if line.startswith("probe 8 "):
        sys.stdin.read()

"""


def killed_after_eight_probes(script):
    """Run a ``script`` that passes ``told`` as its progress, until it says so; then kill it."""
    command = [sys.executable, "-c", _TOLD + script]
    paths = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    ) as process:
        reached = any(line.startswith("probe 8 ") for line in process.stdout)
        process.kill()
    assert reached, "it ended before it was killed"
