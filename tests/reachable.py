"""The repository and its interpreter at places that a test's mounts do not cover: a clone may lie below ``/tmp``.

Tests that cover the temporary folders of a process run ``MOUNTS`` first, as root of a mount namespace, and then start
``PYTHON`` with ``REPOSITORY`` on its path. Where neither lies in a temporary folder both are what they always are.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")

_HERE = Path(__file__).resolve().parents[1]
_PREFIX = Path(sys.prefix)
_POINT = next(point for point in ("/media", "/srv", "/opt") if Path(point).is_dir())


def _covered(path: Path) -> bool:
    return any(Path(name) in path.parents for name in TEMPORARY)


_moved = {
    path: Path(_POINT, name) for name, path in (("repository", _HERE), ("python", _PREFIX)) if _covered(path)
}


def there(path: str) -> str:
    """Where a path of this process is found: the same, or below a place that the mounts made."""
    # The interpreter first: its folder may lie in the repository.
    for old in (_PREFIX, _HERE):
        if old in _moved and Path(path).is_relative_to(old):
            return str(_moved[old] / Path(path).relative_to(old))
    return path


REPOSITORY = Path(there(str(_HERE)))
PYTHON = there(sys.executable)
MOUNTS = "".join(
    f"{line}\n"
    for line in (
        *([f"mount -t tmpfs none {_POINT}"] if _moved else []),
        *(
            f"mkdir {target} && mount --rbind {shlex.quote(str(path))} {target}"
            for path, target in _moved.items()
        ),
    )
)
