"""``cachekit verify``: reads everything again, names each thing that is not as it should be, and mends it if asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachekit.cli import text
from cachekit.cli.exit_codes import ExitCode
from cachekit.cli.options import Debug, Dir, Json, Namespace, OptionalId
from cachekit.cli.output import Document, Output
from cachekit.cli.shelf import Shelf, opened

if TYPE_CHECKING:
    from rich.console import Console

    from cachekit.cli.checks import Check
    from cachekit.cli.mending import Mending


def verify(
    id: OptionalId = None,  # noqa: A002  what Typer shows as its name
    *,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Mend what is wrong: rebuild bundles from what is whole, move what is damaged to quarantine, "
            "tighten modes, make the manifest anew.",
        ),
    ] = False,
    dir: Dir = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check every bundle, the keys, the manifest, and what lies beside them.

    Of a bundle: signature, schema, freshness, digests, sizes, keys, pickled names, completeness, statements. Without
    --repair nothing is changed. With an ID only that bundle is looked at.

    Exits with 1 if anything is wrong, and names each problem; with --repair, if anything is still wrong afterwards.
    Repairing never destroys: what is taken out goes to quarantine. What a newer release wrote is left untouched.
    """
    with opened(dir=dir, namespace=namespace, json=json, debug=debug) as (out, shelf):
        mending = _mend(out, shelf, id) if repair else None
        check = _look(out, Shelf(out, dir=dir, namespace=namespace) if repair else shelf, id)
        out.answer(_document(shelf, check, mending), _draw)
        if check.problems:
            out.code = ExitCode.FOUND


def _look(out: Output, shelf: Shelf, chosen: str | None) -> Check:
    from cachekit.cli import surroundings
    from cachekit.cli.checks import Check

    with out.progress() as bar:
        check = Check(shelf, bar)
        fids = shelf.chosen(chosen)
        if chosen is None:
            problems, notes = surroundings.findings(shelf)
            check.problems += problems
            check.notes += notes
        for fid in fids:
            check.profile(fid)
    return check


def _mend(out: Output, shelf: Shelf, chosen: str | None) -> Mending:
    """The surroundings first, because nothing can be read or signed without them; then what is found wrong."""
    from cachekit.cli.mending import Mending

    mending = Mending(shelf)
    if chosen is None:
        mending.surroundings()
    check = _look(out, shelf, chosen)
    mending.profiles(dict.fromkeys(problem.id for problem in check.problems if problem.id))
    if chosen is None and (mending.done or check.problems):
        mending.manifest()
    return mending


def _document(shelf: Shelf, check: Check, mending: Mending | None) -> dict[str, Any]:
    from cachekit.cli import surroundings

    document: dict[str, Any] = {
        **shelf.place,
        "bundles": check.bundles,
        "artifacts": check.artifacts,
        "raw_bytes": check.raw_bytes,
        "problems": [problem.to_json() for problem in check.problems],
        "notes": [note.to_json() for note in check.notes],
        "quarantine": surroundings.quarantined(shelf),
    }
    if mending is not None:
        document["repaired"] = [done.to_json() for done in mending.done]
        document["not_repaired"] = [failed.to_json() for failed in mending.failed]
    return document


def _draw(document: Document, console: Console) -> None:
    for one in document.get("repaired", ()):
        console.print(_line("repaired", one))
    for one in document.get("not_repaired", ()):
        console.print(_line("not repaired", one))
    if document["problems"]:
        table = text.table("fingerprint", "where", "code", "problem")
        for one in document["problems"]:
            text.row(table, text.short(one["id"]) or "-", one["where"], one["code"], one["message"])
        console.print(table)
    for one in document["notes"]:
        console.print(_line("note", one))
    kept = document["quarantine"]
    if kept["files"]:
        told = f"{text.plural(kept['files'], 'file')} ({text.size(kept['bytes'])})"
        console.print(text.printable(f"quarantine: {told} in {kept['folder']}"))
    read = f"{text.plural(document['bundles'], 'bundle')}, {text.plural(document['artifacts'], 'artifact')}"
    console.print(
        f"read {read}, {text.size(document['raw_bytes'])}: {text.plural(len(document['problems']), 'problem')}"
    )


def _line(kind: str, one: dict[str, str]) -> str:
    which = f"{text.short(one['id'])} " if one["id"] else ""
    return text.printable(f"{kind}: {which}{one['where']}: {one['message']}")
