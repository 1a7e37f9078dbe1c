"""The folder where verified files are kept, and how they get there."""

import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import platformdirs

from noisescale.data.sources import Collection, File, SourceError, gunzip
from noisescale.errors import InputError
from noisescale.files import read_bytes, write_whole

Report = Callable[[str], None]
_HEADER = 1_000  # bytes of a gzip file beside its content


class DataWarning(UserWarning):
    """Something about the data that a user should know, in one line."""


class DataUnavailableError(RuntimeError):
    """No source could deliver the files; the message lists what was tried and what to do."""


class FileState(StrEnum):
    """What the cache holds of one file."""

    VERIFIED = "verified"
    MISSING = "missing"
    ALTERED = "altered"


def cache_folder(collection: Collection | None = None) -> Path:
    """``$NOISESCALE_DATA`` if it is set, else the user's cache folder."""
    chosen = os.environ.get("NOISESCALE_DATA")
    if chosen:
        root = Path(chosen).expanduser()
    else:
        root = platformdirs.user_cache_path("noisescale", appauthor=False)
    return root / collection.name if collection else root


def read_cached(file: File, folder: Path) -> tuple[FileState, Path, bytes]:
    """State, path and content of ``file`` in ``folder``, plain or gzipped."""
    plain = folder / file.name
    worst = FileState.MISSING, plain, b""
    for path in (plain, plain.with_name(f"{file.name}.gz")):
        # A gzip file that is larger than what is in it is none of ours.
        at_most = file.size if path == plain else 2 * file.size + _HEADER
        try:
            content = read_bytes(path, at_most)
        except InputError:  # too large, or no file at all
            content = b""
        except OSError:  # absent, or not for us to read: either way it must come from elsewhere
            continue
        if path.suffix == ".gz":
            try:
                content = gunzip(content, file)
            except SourceError:
                content = b""
        if file.accepts(content):
            return FileState.VERIFIED, path, content
        worst = FileState.ALTERED, path, b""
    return worst


def obtain(collection: Collection, report: Report | None = None) -> tuple[dict[str, bytes], str]:
    """Verified content of every file by name, and where it came from.

    Takes what the cache holds; what is missing or altered there is fetched from the first source
    that has it and written back. ``report`` is told of each step in a line.
    """
    folder = cache_folder(collection)
    contents: dict[str, bytes] = {}
    for file in collection.files:
        state, path, content = read_cached(file, folder)
        if state is FileState.VERIFIED:
            contents[file.name] = content
        elif state is FileState.ALTERED:
            warnings.warn(
                f"{path} is not the genuine {file.name} (its sha256 differs): fetching it again.",
                DataWarning,
                stacklevel=4,
            )
    if len(contents) == len(collection.files):
        return contents, f"cache {folder}"
    if collection.name in _failed:
        raise _failed[collection.name]
    try:
        return _fetch(collection, contents, folder, report or (lambda line: None))
    except DataUnavailableError as error:
        _failed[collection.name] = error
        raise


# Without a network every source takes seconds to fail: ask once a process, not at every load.
_failed: dict[str, DataUnavailableError] = {}


def forget_failures(collection: Collection) -> None:
    """Let the next :func:`obtain` ask the sources again."""
    _failed.pop(collection.name, None)


def _fetch(
    collection: Collection, contents: dict[str, bytes], folder: Path, report: Report
) -> tuple[dict[str, bytes], str]:
    """Fill the gaps in ``contents`` from the first source that can, and keep a copy of each."""
    failures = []
    fetched: dict[str, bytes] = {}
    for source, open_source in collection.sources():
        report(f"fetching {collection.name} from {source}")
        try:
            for k, (file, content) in enumerate(open_source(), start=1):
                report(f"{collection.name} from {source}: {k} of {len(collection.files)} files")
                if not file.accepts(content):
                    raise SourceError(f"its {file.name} has another sha256")
                if file.name not in contents:
                    fetched[file.name] = content
        except SourceError as error:
            failures.append(f"{source}: {error}")
            continue
        _keep(folder, fetched)
        return contents | fetched, source
    raise DataUnavailableError(
        f"{collection.name} could not be had ({'; '.join(failures)}): put its files "
        f"({', '.join(file.name for file in collection.files)}) into {folder}."
    )


def _keep(folder: Path, contents: dict[str, bytes]) -> None:
    """Write files into the cache, or say in one line that they could not be kept."""
    try:
        for name, content in contents.items():
            write_whole(folder / name, content, make_folder=True)
            # Neither form was genuine, or nothing would have been fetched.
            with suppress(OSError):
                (folder / f"{name}.gz").unlink(missing_ok=True)
    except InputError as error:
        warnings.warn(
            f"{error} The data are used but not kept; NOISESCALE_DATA names another folder.",
            DataWarning,
            stacklevel=5,
        )
