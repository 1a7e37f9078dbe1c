"""Whose runs a store has: this function's, those of an older version of it, or another's."""

import pandas as pd

from noisescale.errors import InputError
from noisescale.jobs.identity import Identity


def older_version(
    role: str, name: str, named: Identity, stored: pd.DataFrame, *, reuse: bool
) -> tuple[str | None, list[str]]:
    """The version whose stored runs are to be used in place of its own, and what to tell.

    Args:
        role, name: of the user's function, as sentences have it.
        named: its identity.
        stored: a row a stored run of any version of it: ``version``, empty where a store does not
            say, and ``finished``.
        reuse: use the runs of the version that was stored last.
    """
    if named.unknown is not None:
        unknown = f"whether {named.unknown}, on which {role} depends, is the same as before"
        if reuse:
            raise InputError(
                f"stored runs cannot be reused: {unknown} cannot be told; give {role} an attribute "
                "identity, a text."
            )
        return None, [f"stored runs are not used, and these will not be: {unknown} cannot be told"]
    older = stored[(stored["version"] != named.name) & ~stored["version"].str.contains("#once-")]
    if older.empty:
        return None, []
    last = str(older.sort_values("finished")["version"].iloc[-1])
    if reuse:
        n = int((older["version"] == last).sum())
        return last, [f"{n} stored runs are used although {role} ({name}) has changed since"]
    why = "its code, its data or a module that it imports has changed"
    if not last:
        why = "what it was then is not stored"
    return None, [
        f"{role} ({name}) is no longer that of the {len(older)} stored runs: {why}, so they are "
        "not used (reuse uses them all the same)"
    ]
