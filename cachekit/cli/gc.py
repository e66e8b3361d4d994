"""``cachekit gc``: removes what nobody needs, and evicts the least valuable compiles until the store fits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachekit.cli import text
from cachekit.cli.exit_codes import ExitCode
from cachekit.cli.options import Debug, Dir, Json
from cachekit.cli.output import Document, reporting
from cachekit.cli.shelf import Shelf
from cachekit.settings import size

if TYPE_CHECKING:
    from rich.console import Console

    from cachekit.runtime.housekeeping import Tidied


def gc(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would go, and change nothing.")
    ] = False,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size",
            metavar="SIZE",
            help="Evict until the store has at most so many bytes: 10GiB, 500MB, 1048576, none. "
            "Default: CACHEKIT_MAX_SIZE.",
            show_default=False,
        ),
    ] = None,
    dir: Dir = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Collect the store: what nobody needs goes, then the least valuable compiles, until the rest fits.

    Value is the seconds a compile saves, times the starts that used it, halved for each week since the last one, per
    byte. What a live process uses stays. All namespaces of the folder count. Exits with 1 if the store still is too
    large, or something could not be removed.
    """
    with reporting(json=json, debug=debug) as out:
        shelf = Shelf(out, dir=dir, namespace=None)
        limit = shelf.settings.max_size if max_size is None else size(max_size, "--max-size")
        shelf.ids  # noqa: B018  a store that cannot be read is not reported as an empty one
        from cachekit.runtime import housekeeping

        if dry_run:
            done = housekeeping.look(shelf.settings, limit=limit)
        else:
            done = housekeeping.tidy(shelf.settings, limit=limit)
        dead = _private_folders(shelf, dry_run=dry_run)
        for note in done.notes:
            out.note(note)
        out.answer(
            {"dir": shelf.place["dir"], "dry_run": dry_run, **_document(done), "private_folders": dead}, _draw
        )
        if done.collected.problems or not done.collected.fits:
            out.code = ExitCode.FOUND


def _private_folders(shelf: Shelf, *, dry_run: bool) -> int:
    """Remove the private folders that dead processes left; how many that were."""
    parent = shelf.settings.process_root
    if sys.platform == "win32" or not parent.is_dir():
        return 0  # sessions, which make them, run on Linux
    from cachekit.runtime.folder import remove_dead
    from cachekit.store import files

    with files.writing(parent):
        return remove_dead(parent, dry_run=dry_run)


def _document(done: Tidied) -> dict[str, Any]:
    found = done.collected
    return {
        "max_size": found.limit,
        "bytes_before": found.before,
        "bytes_after": found.after,
        "unneeded_bytes": found.rubbish,
        "fits": found.fits,
        "evicted": [
            {
                "namespace": row.namespace,
                "id": row.fid,
                "unit": row.unit or None,
                "artifact": row.artifact or None,
                "shapes": list(row.shapes),
                "bytes": row.bytes,
                "seconds": row.seconds,
                "starts": row.starts,
                "last_use": text.utc(int(row.last * 1000)),
            }
            for row in found.evicted
        ],
        "removed": [{"namespace": namespace, "id": fid} for namespace, fid in found.removed],
        "kept": [
            {"namespace": keep.namespace, "id": keep.fid or None, "reason": keep.reason}
            for keep in found.kept
        ],
        "problems": list(found.problems),
        "notes": list(done.notes),
    }


def _draw(document: Document, console: Console) -> None:
    if document["evicted"]:
        table = text.table(
            "fingerprint",
            "unit",
            "shapes",
            "bytes",
            "saves",
            "starts",
            "last use",
            right=("bytes", "saves", "starts"),
        )
        for row in document["evicted"]:
            text.row(
                table,
                text.short(row["id"]),
                text.short(row["unit"] or "(no unit)"),
                " ".join(row["shapes"]) or "-",
                text.size(row["bytes"]),
                text.seconds(row["seconds"]),
                row["starts"],
                text.local(row["last_use"]),
            )
        console.print(table)
    for keep in document["kept"]:
        what = text.short(keep["id"]) if keep["id"] else "everything"
        console.print(text.printable(f"stays: {what} ({keep['namespace']}): {keep['reason']}"))
    for problem in document["problems"]:
        console.print(text.printable(f"problem: {problem}"))
    _draw_sums(document, console)


def _draw_sums(document: Document, console: Console) -> None:
    would = "would be " if document["dry_run"] else ""
    evicted = text.plural(len(document["evicted"]), "eviction")
    removed = text.plural(len(document["removed"]), "fingerprint")
    gone = f"{evicted}, {removed} {would}removed, {text.size(document['unneeded_bytes'])} that nobody needed"
    limit = "no limit" if document["max_size"] is None else f"limit {text.size(document['max_size'])}"
    sizes = f"{text.size(document['bytes_before'])} → {text.size(document['bytes_after'])} ({limit})"
    console.print(f"{gone}: {sizes}")
    if document["private_folders"]:
        folders = text.plural(document["private_folders"], "private folder")
        console.print(f"{folders} of dead processes {would}removed")
    if not document["fits"]:
        console.print("the store is larger than its limit: what is left is in use, or not ours to judge")
