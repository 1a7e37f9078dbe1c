"""The one exception that means "your input", as opposed to "our bug"."""

from noisescale.text import printable, shortened


class InputError(ValueError):
    """Input that noisescale refuses; the message is one sentence saying what to do instead.

    It is a ``ValueError``, so code that already catches those keeps working; the command line
    turns it into one line and exit code 2. What it repeats of the input is cut where it is long,
    and commands no terminal.
    """

    def __init__(self, message: str) -> None:
        super().__init__(shortened(printable(message)))
