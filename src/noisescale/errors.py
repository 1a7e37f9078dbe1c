"""The one exception that means "your input", as opposed to "our bug"."""


class InputError(ValueError):
    """Input that noisescale refuses; the message is one sentence saying what to do instead.

    It is a ``ValueError``, so code that already catches those keeps working; the command line
    turns it into one line and exit code 2.
    """
