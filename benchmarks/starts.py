"""How a start begins: with cachekit's store, with torch's own bundle, or with nothing.

Used by ``measure`` in a child process. Rows share a work folder: the cold start leaves there its store, its raw
Mega-cache bundle and its outputs; the rows after it start from copies of those.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from benchmarks.denoisers import Shape

ROWS = ("cold", "plain", "warm", "raw")


class Start(Protocol):
    """One way to begin, and what it does after a shape has run for the first time."""

    def begin(self, module: Any, *, regional: bool) -> dict[str, float]:
        """Bring the cache and have ``module`` compiled at its next call. Returns seconds by step."""

    def ran(self, shape: Shape) -> dict[str, Any]:
        """After a shape's first step: save, and tell what was hit."""

    def end(self) -> dict[str, Any]:
        """After the last shape."""


class CachekitStart:
    """What cachekit's users do. With ``raw_bundle`` torch's own save runs beside it, after each shape."""

    def __init__(self, folder: Path, *, raw_bundle: Path | None = None) -> None:
        self._folder = folder
        self._raw_bundle = raw_bundle
        self._session: Any = None

    def begin(self, module: Any, *, regional: bool) -> dict[str, float]:
        """Attach."""
        import cachekit

        started = time.perf_counter()
        self._session = cachekit.attach(module, dir=self._folder)
        return {"attach_s": time.perf_counter() - started}

    def ran(self, shape: Shape) -> dict[str, Any]:
        """Name the shape, save, and ask for the proof."""
        facts: dict[str, Any] = {"registered": self._session.register_shape(*shape)}
        started = time.perf_counter()
        facts["saved"] = self._session.save(wait=True)
        facts["save_s"] = time.perf_counter() - started
        facts["report"] = self._session.report().to_json()
        if self._raw_bundle is not None:
            facts["raw"] = save_raw(self._raw_bundle)
        return facts

    def end(self) -> dict[str, Any]:
        """Close the session."""
        self._session.close()
        return {"stored": stored(self._folder / "store"), "report": self._session.report().to_json()}


class TorchStart:
    """What users of plain torch do: ``load_cache_artifacts`` of ``load``, if given, and ``compile``."""

    def __init__(self, *, load: Path | None = None, save: Path | None = None) -> None:
        self._load = load
        self._save = save

    def begin(self, module: Any, *, regional: bool) -> dict[str, float]:
        """Load, if there is something to load, and compile."""
        import torch

        seconds = {}
        if self._load is not None:
            data = self._load.read_bytes()
            started = time.perf_counter()
            info = torch.compiler.load_cache_artifacts(data)
            seconds["load_s"] = time.perf_counter() - started
            if info is None:
                raise RuntimeError("torch refused its own bundle")
        if regional:
            module.compile_repeated_blocks(fullgraph=True, dynamic=True)
        else:
            module.compile(dynamic=False)
        return seconds

    def ran(self, shape: Shape) -> dict[str, Any]:
        """Save, if this row saves."""
        return {"raw": save_raw(self._save)} if self._save is not None else {}

    def end(self) -> dict[str, Any]:
        """Nothing is left to do."""
        return {}


def start_of(row: str, work: Path) -> Start:
    """How ``row`` begins, with what earlier rows left in ``work``."""
    if row == "cold":
        return CachekitStart(work / "cachekit", raw_bundle=work / "raw.bin")
    if row == "plain":
        return TorchStart(save=work / "plain.bin")
    if row == "raw":
        return TorchStart(load=work / "raw.bin")
    return CachekitStart(_travelled(work))


def save_raw(path: Path) -> dict[str, Any]:
    """torch's own bundle of everything so far, written to ``path``: what somebody without cachekit would ship."""
    import torch

    started = time.perf_counter()
    saved = torch.compiler.save_cache_artifacts()
    if saved is None:
        return {"bytes": 0}
    data, info = saved
    seconds = time.perf_counter() - started
    path.write_bytes(data)
    return {
        "bytes": len(data),
        "save_s": seconds,
        "artifacts": {kind: len(keys) for kind, keys in info.artifacts.items()},
    }


def stored(root: Path) -> dict[str, int]:
    """Files and bytes of a store."""
    sizes = [path.stat().st_size for path in root.rglob("*") if path.is_file()]
    return {"files": len(sizes), "bytes": sum(sizes)}


def _travelled(work: Path) -> Path:
    """A copy of the cold start's store and keys, so that each warm start finds exactly what the cold one left."""
    folder = Path(tempfile.mkdtemp(prefix="cachekit-")) / "copy"
    shutil.copytree(work / "cachekit", folder, ignore=shutil.ignore_patterns("process"))
    return folder
