"""What scripts in a container try without torch: find a place for the private folder, keep something, find it again."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import Any

from cachekit.bundle import Artifact
from cachekit.errors import CachekitError
from cachekit.identity import Fingerprint
from cachekit.runtime import places
from cachekit.runtime.folder import PrivateFolder, first_fit
from cachekit.runtime.library import Library
from cachekit.runtime.profile import Pending
from cachekit.settings import Settings

FINGERPRINT = Fingerprint.of(
    {"toolchain": {"torch": "2.13.0"}, "pipeline": {"family": "toy"}, "plan": {"scope": "module"}}
)


def room(settings: Settings | None = None) -> tuple[PrivateFolder | None, dict[str, Any]]:
    """Find a place as a session does; the folder, and where it is or why there is none."""
    settings = settings or Settings.from_env()
    try:
        folder = first_fit(places.candidates(settings.process_root))
    except CachekitError as exc:
        return None, {"nowhere": str(exc)}
    (folder.inductor / "kernel.so").write_bytes(b"code")
    return folder, {
        "place": os.fsencode(folder.path.parent).decode("latin-1"),
        "passed_over": folder.passed_over,
    }


def keep(data: bytes = b"\x7fELF machine code", settings: Settings | None = None) -> dict[str, Any]:
    """Publish one artifact as a session does and look for it: the generation, or the error of ours."""
    settings = settings or Settings.from_env()
    name = base64.b32encode(hashlib.sha256(data).digest()).decode().lower()[:51]
    artifact = Artifact("kernel", f"aa/c{name}.main.so", data)
    try:
        pending = Pending((artifact,), frozenset(), (), ())
        Library(settings).publish(FINGERPRINT, pending, _Nowhere())  # type: ignore[arg-type]
        return {"error": None, **find(settings)}
    except CachekitError as exc:
        return {"error": f"{type(exc).__name__}: {exc}"}


def find(settings: Settings | None = None) -> dict[str, Any]:
    """Read the bundle as a start does: generation and artifacts, None and 0 where there is none."""
    bundle = Library(settings or Settings.from_env()).find(FINGERPRINT)
    return {
        "generation": bundle.generation if bundle else None,
        "artifacts": len(bundle.entries) if bundle else 0,
    }


class _Nowhere:
    """Stands in for the private folder of a save without kernels of its own."""

    inductor = Path(os.devnull)
