"""``cachekit ls``: what is stored, one line per fingerprint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachekit.cli import text
from cachekit.cli.exit_codes import ExitCode
from cachekit.cli.options import Debug, Dir, Json, Namespace
from cachekit.cli.output import Document, Output
from cachekit.cli.rebuild import is_damage
from cachekit.cli.shelf import Shelf, opened, problem_of
from cachekit.errors import CachekitError, ManifestError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from cachekit.bundle.bundle import Bundle

_COLUMNS = ("id", "pipeline", "runs on", "shapes", "artifacts", "raw", "stored", "gen", "last use")
_NUMBERS = ("artifacts", "raw", "stored", "gen")
_SHOWN_SHAPES = 3
_WIDE = 150
"""Columns that a line of a usual bundle takes."""


def ls(*, dir: Dir = None, namespace: Namespace = None, json: Json = False, debug: Debug = False) -> None:
    """List the stored bundles: pipeline, device, shapes, sizes, last use.

    A bundle that cannot be read or trusted is named on standard error; the others are listed all the same.
    """
    with opened(dir=dir, namespace=namespace, json=json, debug=debug) as (out, shelf):
        bundles, problems = shelf.bundles()
        rows = [_row(bundle) for bundle in bundles]
        uses = _last_uses(out, shelf, problems) if rows else {}
        for row in rows:
            used = [time for time in (row.pop("newest"), uses.get(row["id"])) if time]
            row["last_use"] = text.utc(max(used)) if used else None
        for problem in problems:
            out.note(f"{problem['where']}: {problem['message']}")
        out.answer({**shelf.place, "bundles": rows, "problems": problems}, _draw)
        if problems:
            out.code = ExitCode.FOUND


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


def _last_uses(out: Output, shelf: Shelf, problems: list[dict[str, str]]) -> dict[str, int]:
    """The time of the newest event of each fingerprint, as far as there is a manifest that can be opened.

    One that cannot be written, because the folder is read-only, say, is no problem of the bundles: a note is enough.
    """
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
        if isinstance(exc, ManifestError) and not is_damage(exc):
            out.note(f"last use is not known: {exc}")
        else:
            problems.append(problem_of("manifest", exc))
    return uses


def _draw(document: Document, console: Console) -> None:
    rows = document["bundles"]
    if not rows:
        if document["problems"]:
            console.print("no bundle can be read")
            return
        console.print(f"nothing is stored in {text.printable(document['dir'])} ({document['namespace']})")
        return

    console.print(_wide(rows) if console.width >= _WIDE or not console.is_terminal else _narrow(rows))


def _wide(rows: list[dict[str, Any]]) -> Table:
    """A line for each bundle, in a pipe as well."""
    table = text.table(*_COLUMNS, right=_NUMBERS)
    for row in rows:
        text.row(
            table,
            text.short(row["id"]),
            " ".join(_pipeline(row)),
            f"{row['device']} torch {row['torch']}",
            " ".join(_labels(row["shapes"])),
            row["artifacts"],
            text.size(row["raw_bytes"]),
            text.size(row["stored_bytes"]),
            row["generation"],
            text.local(row["last_use"]),
        )
    return table


def _narrow(rows: list[dict[str, Any]]) -> Table:
    """What does not fit beside each other stands below each other, so that nothing is squeezed at 80 columns."""
    table = text.table("id, pipeline", "runs on", "shapes", "stored", "last use")
    table.padding = 0  # the space between columns is enough
    for row in rows:
        text.row(
            table,
            [text.short(row["id"]), *_pipeline(row)],
            [str(row["device"]), f"torch {row['torch']}"],
            _labels(row["shapes"]),
            [
                text.size(row["stored_bytes"]),
                text.plural(row["artifacts"], "artifact"),
                f"generation {row['generation']}",
            ],
            text.local(row["last_use"]).split(" "),
        )
    return table


def _pipeline(row: dict[str, Any]) -> list[str]:
    return [str(row["family"]), *(name.rpartition(".")[2] for name in row["denoisers"])]


def _labels(shapes: list[str]) -> list[str]:
    rest = len(shapes) - _SHOWN_SHAPES
    return shapes[:_SHOWN_SHAPES] + ([f"and {rest} more"] if rest > 0 else []) or ["-"]
