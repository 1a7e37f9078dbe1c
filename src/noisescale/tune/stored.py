"""Whose runs a store has: this function's, those of an older version of it, or another's."""

from noisescale.errors import InputError
from noisescale.jobs.identity import Identity
from noisescale.jobs.store import RunStore


def stored_name(named: Identity, store: RunStore, *, reuse: bool) -> tuple[str, list[str]]:
    """The name under which runs are looked up and kept, and what to tell about it.

    With ``reuse`` the name of the version that was stored last, if there is none of this one.
    """
    if named.unknown is not None:
        if reuse:
            raise InputError(
                f"stored runs cannot be reused: whether {named.unknown}, on which train depends, "
                "is the same as before cannot be told; give train an attribute identity, a text."
            )
        return named.name, [
            f"stored runs are not used, and these will not be: whether {named.unknown}, on "
            "which train depends, is the same as before cannot be told"
        ]
    frame = store.frame()
    if "function" not in frame or "#" not in named.name:
        return named.name, []
    stem = named.name.rpartition("#")[0]
    functions = frame["function"].astype("string")
    own = functions == named.name
    older = frame[functions.str.startswith(f"{stem}#", na=False) & ~own]
    older = older[~older["function"].str.contains("#once-")]
    if own.any() or older.empty:
        return named.name, []
    last = str(older.sort_values("finished")["function"].iloc[-1])
    if reuse:
        n = int((older["function"] == last).sum())
        return last, [f"{n} stored runs are used although train ({stem}) has changed since"]
    return named.name, [
        f"train ({stem}) is no longer that of the {len(older)} stored runs: its code, its data or "
        "a module that it imports has changed, so they are not used (reuse uses them all the same)"
    ]
