r"""Which file systems are network ones: there locks may not hold, and torch's own caches break.

Pure over the text of ``/proc/self/mountinfo``, except for :func:`network_type`, which reads it. A file system that is
not known as a network one counts as local, and so does everything where that file cannot be read (ADR 0006).

    >>> table = "36 25 0:52 / /home rw - nfs4 filer:/home rw,vers=4.2"
    >>> mount_of("/home/kim", table).network
    True
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")

NETWORK_TYPES = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p"),
        *(
            "ceph",
            "lustre",
            "gpfs",
            "beegfs",
            "fhgfs",
            "glusterfs",
            "orangefs",
            "pvfs2",
            "panfs",
            "wekafs",
            "quobyte",
        ),
        *("sshfs", "s3fs", "s3ql", "goofys", "geesefs", "mountpoint-s3", "gcsfuse", "blobfuse", "blobfuse2"),
        *(
            "rclone",
            "davfs",
            "davfs2",
            "curlftpfs",
            "juicefs",
            "seaweedfs",
            "moosefs",
            "mfs",
            "cvmfs2",
            "dbfs",
        ),
    )
)
"""Types as the kernel names them, FUSE ones without their ``fuse.``."""

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the table: where it is mounted, the file system's type, its source and its own options."""

    point: str
    type: str
    source: str
    options: frozenset[str]

    @property
    def network(self) -> bool:
        """Whether other hosts may use the same files."""
        kind = self.type.removeprefix("fuse.")
        if kind == "fuse":  # some name themselves only as the source
            kind = self.source.partition("#")[0].partition(":")[0]
        # gVisor shows a container's own files as 9p, through a descriptor.
        return kind in NETWORK_TYPES and not (kind == "9p" and "trans=fd" in self.options)


def mounts(table: str) -> Iterator[Mount]:
    """Every mount of a ``mountinfo`` text, in its order; lines that cannot be read are passed over."""
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if dash and len(fields) >= 6 and len(rest) >= 2:
            options = frozenset(rest[2].split(",")) if len(rest) > 2 else frozenset()
            yield Mount(_plain(fields[4]), rest[0], _plain(rest[1]), options)


def mount_of(path: str, table: str) -> Mount | None:
    """The mount that an absolute path without links lies on: the nearest, and of two at one place the later one."""
    nearest = None
    for mount in mounts(table):
        inside = mount.point in ("/", path) or path.startswith(mount.point + "/")
        if inside and (nearest is None or len(mount.point) >= len(nearest.point)):
            nearest = mount
    return nearest


def network_type(folder: Path) -> str | None:
    """The type of the network file system that ``folder`` is or would be on, None for a local one."""
    try:
        table = MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:  # no /proc, or not Linux
        return None
    mount = mount_of(os.path.realpath(folder), table)
    return mount.type if mount is not None and mount.network else None


def unsafe_to_write(folder: Path) -> str | None:
    """Why nothing must be written below ``folder``, and what to set; None where locks hold (ADR 0006)."""
    network = network_type(folder)
    if network is None:
        return None
    return (
        f"{folder} is on a network file system ({network}), where locks may not hold: it is read and never written; "
        "set CACHEKIT_DIR to a folder on a local disk"
    )


def _plain(field: str) -> str:
    """Space, tab, newline and backslash are written as three octal digits."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), field)
