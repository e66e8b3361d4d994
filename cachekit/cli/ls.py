"""``cachekit ls``: what is stored, one line per fingerprint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachekit.cli import text
from cachekit.cli.exit_codes import ExitCode
from cachekit.cli.options import Debug, Dir, Json, Namespace
from cachekit.cli.output import Document, reporting
from cachekit.cli.shelf import Shelf
from cachekit.errors import CachekitError

if TYPE_CHECKING:
    from rich.console import Console

    from cachekit.bundle.bundle import Bundle

_COLUMNS = ("id", "pipeline", "runs on", "shapes", "artifacts", "raw", "stored", "gen", "last use")
_NUMBERS = ("artifacts", "raw", "stored", "gen")
_SHOWN_SHAPES = 3


def ls(*, dir: Dir = None, namespace: Namespace = None, json: Json = False, debug: Debug = False) -> None:
    """List the stored bundles: pipeline, device, shapes, sizes, last use.

    A bundle that cannot be read or trusted is named on standard error; the others are listed all the same.
    """
    with reporting(json=json, debug=debug) as out:
        shelf = Shelf(out, dir=dir, namespace=namespace)
        rows, problems = _rows(shelf)
        uses = _last_uses(shelf, problems) if rows else {}
        for row in rows:
            used = [time for time in (row.pop("newest"), uses.get(row["id"])) if time]
            row["last_use"] = text.utc(max(used)) if used else None
        for problem in problems:
            out.note(f"{problem['where']}: {problem['message']}")
        out.answer({**shelf.place, "bundles": rows, "problems": problems}, _draw)
        if problems:
            out.code = ExitCode.FOUND


def _rows(shelf: Shelf) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    rows, problems = [], []
    for fid in shelf.ids:
        try:
            bundle = shelf.bundle(fid)
        except CachekitError as exc:
            problems.append(_problem(fid, exc))
            continue
        if bundle is not None:
            rows.append(_row(bundle))
    return rows, problems


def _row(bundle: Bundle) -> dict[str, Any]:
    return {
        "id": bundle.fingerprint_id,
        **text.summary(bundle.fingerprint),
        "shapes": text.labels(bundle.coverage),
        "units": len(bundle.coverage.unit_ids),
        "artifacts": len(bundle.entries),
        "raw_bytes": sum(entry.raw_size for entry in bundle.entries),
        "stored_bytes": sum(entry.stored_size for entry in bundle.entries),
        "generation": bundle.generation,
        "newest": max((entry.accepted for entry in bundle.entries), default=0),
    }


def _last_uses(shelf: Shelf, problems: list[dict[str, str]]) -> dict[str, int]:
    """The time of the newest event of each fingerprint, as far as there is a manifest."""
    path = shelf.settings.manifest_path
    if not path.exists():
        return {}
    from cachekit.manifest import Manifest
    from cachekit.manifest.manifest import KEPT_EVENTS

    uses: dict[str, int] = {}
    try:
        with Manifest(path) as manifest:
            for event in manifest.events(KEPT_EVENTS):
                if event.fingerprint_id is not None:
                    uses.setdefault(event.fingerprint_id, event.at)
    except CachekitError as exc:
        problems.append(_problem("manifest", exc))
    return uses


def _problem(where: str, error: CachekitError) -> dict[str, str]:
    return {"where": where, "code": error.code, "message": error.diagnostics()}


def _draw(document: Document, console: Console) -> None:
    rows = document["bundles"]
    if not rows:
        if document["problems"]:
            console.print("no bundle can be read")
            return
        console.print(f"nothing is stored in {text.printable(document['dir'])} ({document['namespace']})")
        return

    def together(parts: list[str]) -> list[str]:
        """One below the other on a terminal, in one line for a pipe."""
        return parts if console.is_terminal else [" ".join(parts)]

    table = text.table(*_COLUMNS, right=_NUMBERS)
    for row in rows:
        classes = [name.rpartition(".")[2] for name in row["denoisers"]]
        text.row(
            table,
            text.short(row["id"]),
            together([str(row["family"]), *classes]),
            together([str(row["device"]), f"torch {row['torch']}"]),
            together(_labels(row["shapes"])),
            row["artifacts"],
            text.size(row["raw_bytes"]),
            text.size(row["stored_bytes"]),
            row["generation"],
            text.local(row["last_use"]),
        )
    console.print(table)


def _labels(shapes: list[str]) -> list[str]:
    rest = len(shapes) - _SHOWN_SHAPES
    return shapes[:_SHOWN_SHAPES] + ([f"and {rest} more"] if rest > 0 else []) or ["-"]
