"""Options that every command has."""

from typing import Annotated

import typer

# Only main() asks whether --debug was given, so that it also covers errors before a command runs.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
