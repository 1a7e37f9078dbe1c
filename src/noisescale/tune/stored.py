"""Under which name a tuning's runs are looked up and kept."""

from noisescale.jobs.identity import Identity
from noisescale.jobs.store import RunStore
from noisescale.jobs.versions import older_version


def stored_name(named: Identity, store: RunStore, *, reuse: bool) -> tuple[str, list[str]]:
    """The name under which runs are looked up and kept, and what to tell about it.

    With ``reuse`` the name of the version that was stored last, if there is none of this one.
    """
    stem = named.name.rpartition("#")[0]
    if not stem:  # a text that the function gives itself
        return named.name, []
    stored = store.frame().reindex(columns=["function", "finished"])
    stored["version"] = stored["function"].astype("string").fillna("")
    if (stored["version"] == named.name).any():
        return named.name, []
    stored = stored[stored["version"].str.startswith(f"{stem}#")]
    older, told = older_version("train", stem, named, stored, reuse=reuse)
    return older or named.name, told
