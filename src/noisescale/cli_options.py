"""Options that several commands have."""

from typing import Annotated

import typer

# Only main() asks whether --debug was given, so that it also covers errors before a command runs.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

Workers = Annotated[
    int | None, typer.Option(metavar="K", help="Local processes. Default: as many as cores.")
]
Cluster = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler, tcp://host:8786.")
]
