"""Whether a path lies on a disk that several processes can share safely."""

import os
import re
from pathlib import Path

_NETWORK = {
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "davfs",
    "fhgfs",
    "fuse.glusterfs",
    "fuse.rclone",
    "fuse.s3fs",
    "fuse.sshfs",
    "gfs",
    "gfs2",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "pvfs2",
    "smb2",
    "smb3",
    "smbfs",
    "wekafs",
}
_MOUNTS = Path("/proc/self/mountinfo")


def network_file_system(path: Path) -> str | None:
    """The name of the network file system that holds ``path``; None for a local disk.

    Linux tells its mounts in a file; other systems are taken at their word.
    """
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    return _kind(Path(os.path.realpath(path)), mounts)  # resolve() raises where links are a loop


def _kind(path: Path, mounts: str) -> str | None:
    # A later mount at the same place hides the earlier one; a deeper one hides its parents.
    deepest, kind = -1, None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        # The kernel writes a blank as \\040, and so on.
        point = Path(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), before.split()[4]))
        if path.is_relative_to(point) and len(point.parts) >= deepest:
            deepest, kind = len(point.parts), after.split()[0]
    return kind if kind in _NETWORK else None
