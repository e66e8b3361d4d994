"""``cachekit verify``: reads everything again and names each thing that is not as it should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachekit.cli import text
from cachekit.cli.exit_codes import ExitCode
from cachekit.cli.options import Debug, Dir, Json, Namespace, OptionalId
from cachekit.cli.output import Document, reporting
from cachekit.cli.shelf import Shelf

if TYPE_CHECKING:
    from rich.console import Console


def verify(
    id: OptionalId = None,  # noqa: A002  what Typer shows as its name
    *,
    dir: Dir = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check every bundle: signature, schema, digests, sizes, keys, pickled names, completeness.

    Reads all of it and changes none of it. Exits with 1 if anything is wrong, and names each problem.
    """
    with reporting(json=json, debug=debug) as out:
        shelf = Shelf(out, dir=dir, namespace=namespace)
        chosen = shelf.chosen(id)
        from cachekit.cli.checks import Check

        with out.progress() as bar:
            check = Check(shelf, bar)
            for fid in chosen:
                check.profile(fid)
        out.answer(
            {
                **shelf.place,
                "bundles": check.bundles,
                "artifacts": check.artifacts,
                "raw_bytes": check.raw_bytes,
                "problems": [problem.to_json() for problem in check.problems],
                "notes": [note.to_json() for note in check.notes],
            },
            _draw,
        )
        if check.problems:
            out.code = ExitCode.FOUND


def _draw(document: Document, console: Console) -> None:
    if document["problems"]:
        table = text.table("fingerprint", "where", "code", "problem")
        for one in document["problems"]:
            text.row(table, text.short(one["id"]), one["where"], one["code"], one["message"])
        console.print(table)
    for one in document["notes"]:
        console.print(text.printable(f"note: {text.short(one['id'])} {one['where']}: {one['message']}"))
    read = f"{text.plural(document['bundles'], 'bundle')}, {text.plural(document['artifacts'], 'artifact')}"
    console.print(
        f"read {read}, {text.size(document['raw_bytes'])}: {text.plural(len(document['problems']), 'problem')}"
    )
