"""Files, read only if they are files, and written whole or not at all."""

import os
import secrets
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from noisescale.errors import InputError

_LARGEST = 2**30  # bytes: of what is read whole, nothing comes near


def read_bytes(path: Path, at_most: int = _LARGEST) -> bytes:
    """What is in a file; an OSError or InputError if it is none, or larger than ours may be.

    It is looked at before it is opened: to read a pipe would wait for ever, and a device may have
    no end.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a file"
        raise InputError(f"{path} cannot be read (it is {kind}).")
    if status.st_size > at_most:
        raise InputError(f"{path} cannot be read (it has {status.st_size:,} bytes, too many).")
    return path.read_bytes()


def read_text(path: Path) -> str:
    """The text of a file, or a sentence why it cannot be read."""
    try:
        return read_bytes(path).decode("utf-8")
    except InputError:
        raise
    except (OSError, ValueError) as error:  # no path at all is a ValueError too
        unreadable = "not text" if isinstance(error, UnicodeDecodeError) else error
        reason = getattr(error, "strerror", None) or unreadable
        raise InputError(f"{path} cannot be read ({reason}).") from None


def write_whole(path: Path, content: str | bytes, *, make_folder: bool = False) -> None:
    """Write whole or not at all: where that fails, the old file is what it was.

    The content is written to one side and takes the old file's place when it is on the disk, so no
    reader sees half of it, and of two writers the last wins. A link or a pipe in the way is
    replaced, not written through.
    """
    if isinstance(content, str):
        content = content.encode("utf-8", "backslashreplace")
    unfinished = path.parent / f".{secrets.token_hex(8)}.part"
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.is_file() and not path.is_symlink():
            if not os.access(path, os.W_OK):
                raise PermissionError(None, "it is write-protected")
            shutil.copymode(path, unfinished)
        unfinished.replace(path)
    except (OSError, ValueError) as error:  # no path at all is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{path} cannot be written ({reason}): make room for it, or choose another place."
        ) from None
    finally:
        with suppress(OSError, ValueError):
            unfinished.unlink(missing_ok=True)
