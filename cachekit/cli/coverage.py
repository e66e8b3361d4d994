"""``cachekit coverage``: which shapes are covered, by which units, and whether the artifacts they need are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from cachekit.cli import text
from cachekit.cli.exit_codes import ExitCode
from cachekit.cli.options import Debug, Dir, Json, Namespace, OptionalId
from cachekit.cli.output import Document
from cachekit.cli.shelf import Shelf, opened

if TYPE_CHECKING:
    from rich.console import Console

    from cachekit.bundle.bundle import Bundle, Entry
    from cachekit.bundle.coverage import ShapeRow, Unit


def coverage(
    id: OptionalId = None,  # noqa: A002  what Typer shows as its name
    *,
    dir: Dir = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show which shapes are covered, and whether every artifact they need is there.

    A blob is looked for, not read: `verify` reads. Exits with 1 if an artifact that a shape needs is missing, or if a
    bundle cannot be read or trusted: it is named on standard error, and the others are told all the same.
    """
    with opened(dir=dir, namespace=namespace, json=json, debug=debug) as (out, shelf):
        found, problems = shelf.bundles() if id is None else (_one(shelf, id), [])
        bundles = [_document(bundle, shelf.store.has_blob) for bundle in found]
        for problem in problems:
            out.note(f"{problem['where']}: {problem['message']}")
        out.answer({**shelf.place, "bundles": bundles, "problems": problems}, _draw)
        if problems or not all(
            row["covered"] for bundle in bundles for row in (*bundle["shapes"], *bundle["unlabelled"])
        ):
            out.code = ExitCode.FOUND


def _one(shelf: Shelf, text: str) -> list[Bundle]:
    bundle = shelf.bundle(shelf.resolve(text))
    return [] if bundle is None else [bundle]


def _document(bundle: Bundle, has_blob: Callable[[str], bool]) -> dict[str, Any]:
    present = {
        entry.identity.id: entry for entry in bundle.entries if entry.inline or has_blob(entry.stored_digest)
    }
    listed = {entry.identity.id: entry for entry in bundle.entries}
    units: dict[str, list[dict[str, Any]]] = {}
    for unit in bundle.coverage.units:
        units.setdefault(unit.id, []).append(_unit(unit, listed, present))
    labelled = {unit_id for row in bundle.coverage.shapes for unit_id in row.unit_ids}
    return {
        "id": bundle.fingerprint_id,
        **text.summary(bundle.fingerprint),
        "generation": bundle.generation,
        "shapes": [_shape(row, units) for row in bundle.coverage.shapes],
        "unlabelled": [
            {"units": alternatives, **_sums([alternatives])}
            for unit_id, alternatives in units.items()
            if unit_id not in labelled
        ],
    }


def _unit(unit: Unit, listed: dict[str, Entry], present: dict[str, Entry]) -> dict[str, Any]:
    return {
        "unit": unit.id,
        "dynamic": unit.dynamic,
        "guards": unit.guards,
        "ranges": [list(one) for one in unit.ranges],
        "compile_s": unit.seconds or None,
        "needs": [
            {
                "identity": need,
                "kind": need.partition(":")[0],
                "key": listed[need].key if need in listed else None,
                "present": need in present,
            }
            for need in unit.needs
        ],
        "complete": present.keys() >= set(unit.needs),
    }


def _shape(row: ShapeRow, units: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """A shape takes all its units; of a unit that is there with several sets of needs, any."""
    taken = [units.get(unit_id, []) for unit_id in row.unit_ids]
    shape = row.shape
    return {
        "shape": shape.label,
        "width": shape.width,
        "height": shape.height,
        "batch": shape.batch,
        "variant": dict(shape.variant),
        "units": [unit for alternatives in taken for unit in alternatives],
        **_sums(taken),
    }


def _sums(taken: Iterable[list[dict[str, Any]]]) -> dict[str, Any]:
    needs: dict[str, bool] = {}
    measured = []
    covered = True
    for alternatives in taken:
        whole = [unit for unit in alternatives if unit["complete"]]
        covered = covered and bool(whole)
        for unit in whole or alternatives:
            needs.update({need["identity"]: need["present"] for need in unit["needs"]})
        seconds = [unit["compile_s"] for unit in alternatives if unit["compile_s"]]
        measured += [min(seconds)] if seconds else []
    return {
        "covered": covered,
        "artifacts": len(needs),
        "missing": sorted(need for need, there in needs.items() if not there),
        "compile_s": sum(measured) if measured else None,
    }


def _draw(document: Document, console: Console) -> None:
    bundles = document["bundles"]
    if not bundles and document["problems"]:
        console.print("no bundle can be read")
    elif not bundles:
        console.print(f"nothing is stored in {text.printable(document['dir'])} ({document['namespace']})")
    for bundle in bundles:
        what = f"{bundle['family']} on {bundle['device']}, generation {bundle['generation']}"
        console.print(text.printable(f"{text.short(bundle['id'])} {what}"), style="bold")
        if not bundle["shapes"] and not bundle["unlabelled"]:
            console.print("no shape is covered")
            continue
        table = text.table(
            "shape", "units", "artifacts", "compile", "covered", right=("artifacts", "compile")
        )
        for row in bundle["shapes"]:
            text.row(table, row["shape"], *_cells(row))
        for row in bundle["unlabelled"]:
            text.row(table, "(no label)", *_cells(row))
        console.print(table)
        _draw_missing(bundle, console)


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    kinds = {unit["unit"]: "dynamic" if unit["dynamic"] else "static" for unit in row["units"]}
    units = " ".join(f"{kind}:{unit[:8]}" for unit, kind in kinds.items())
    there = row["artifacts"] - len(row["missing"])
    return (
        units,
        f"{there} of {row['artifacts']}",
        text.seconds(row["compile_s"] or 0.0),
        "yes" if row["covered"] else "NO",
    )


def _draw_missing(bundle: dict[str, Any], console: Console) -> None:
    rows = (*bundle["shapes"], *bundle["unlabelled"])
    missing = {need for row in rows for need in row["missing"]}
    keys = {need["identity"]: need["key"] for row in rows for unit in row["units"] for need in unit["needs"]}
    for need in sorted(missing):
        console.print(text.printable(f"missing: {need.partition(':')[0]} {keys[need] or need}"))
