"""``cachekit rebuild``: makes the manifest anew from the store."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachekit.cli import text
from cachekit.cli.exit_codes import ExitCode
from cachekit.cli.options import Debug, Dir, Json, Namespace
from cachekit.cli.output import Document, Output
from cachekit.cli.shelf import Shelf, opened
from cachekit.errors import ManifestError

if TYPE_CHECKING:
    from rich.console import Console

    from cachekit.manifest import Manifest

_WITH_THE_FILE = ("", "-wal", "-shm")


def rebuild(
    *, dir: Dir = None, namespace: Namespace = None, json: Json = False, debug: Debug = False
) -> None:
    """Make the manifest anew from the bundles in the store.

    Events are kept. A manifest that is damaged is moved aside; one of a newer release is left untouched. Exits with 1
    if a bundle could not be read or trusted: it is left out.
    """
    with opened(dir=dir, namespace=namespace, json=json, debug=debug) as (out, shelf):
        document: dict[str, Any] = {
            **shelf.place,
            "manifest": str(shelf.settings.manifest_path),
            "moved_aside": None,
            "fingerprints": 0,
            "artifacts": 0,
            "shapes": 0,
            "problems": [],
        }
        if shelf.settings.dir.exists():
            _rebuild(out, shelf, document)
        out.answer(document, _draw)
        if document["problems"]:
            out.code = ExitCode.FOUND


def _rebuild(out: Output, shelf: Shelf, document: dict[str, Any]) -> None:
    manifest, aside = open_or_replace(shelf.settings.manifest_path)
    if aside is not None:
        document["moved_aside"] = str(aside)
        out.note(f"the manifest was damaged; it is now {aside}")
    with manifest:
        rebuilt = manifest.rebuild(shelf.store, shelf.trusted)
    document["fingerprints"] = rebuilt.fingerprints
    document["artifacts"] = rebuilt.artifacts
    document["shapes"] = rebuilt.shapes
    document["problems"] = [{"id": fid, "message": message} for fid, message in rebuilt.problems]


def open_or_replace(path: Path) -> tuple[Manifest, Path | None]:
    """The manifest; where the file is damaged it is moved aside first, and its new place is returned as well."""
    from cachekit.manifest import Manifest

    try:
        manifest = Manifest(path)
        manifest.counts()  # opening reads the first page only
        return manifest, None
    except ManifestError as exc:
        if not is_damage(exc):
            raise
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns():020d}")
    try:
        for suffix in _WITH_THE_FILE:
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.replace(aside.with_name(aside.name + suffix))
    except OSError as exc:
        raise ManifestError(f"cannot move the damaged manifest {path} aside: {exc.strerror}") from exc
    return Manifest(path), aside


def is_damage(error: BaseException) -> bool:
    """Whether SQLite says the file is malformed; it has other classes for a lock, a full disk or a permission."""
    cause: BaseException | None = error.__cause__
    while cause is not None:
        found = getattr(cause, "orig", None) or cause
        if isinstance(found, sqlite3.DatabaseError):
            return type(found) is sqlite3.DatabaseError
        cause = cause.__cause__
    return False


def _draw(document: Document, console: Console) -> None:
    if document["problems"]:
        table = text.table("fingerprint", "left out because")
        for one in document["problems"]:
            text.row(table, text.short(one["id"]), one["message"])
        console.print(table)
    counts = (
        text.plural(document["fingerprints"], "fingerprint"),
        text.plural(document["artifacts"], "artifact"),
        text.plural(document["shapes"], "shape"),
    )
    console.print(text.printable(f"{document['manifest']}: {', '.join(counts)}"))
