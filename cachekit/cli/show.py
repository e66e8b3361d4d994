"""``cachekit show``: everything that is known of one bundle, and on request what it reveals."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachekit.cli import text
from cachekit.cli.exit_codes import ExitCode
from cachekit.cli.options import Debug, Dir, Id, Json, Namespace
from cachekit.cli.output import Document, Output, reporting
from cachekit.cli.shelf import Shelf

if TYPE_CHECKING:
    from rich.console import Console

    from cachekit.bundle.bundle import Bundle, Entry

_FOLDED_DEPTH = 5
"""Folders that are shown of paths which have them in common; ``--json`` lists each path."""


def show(
    id: Id,  # noqa: A002  what Typer shows as its name
    *,
    privacy: Annotated[
        bool,
        typer.Option(
            "--privacy",
            help="List paths, users and hosts found in it; exit with 1 if any tells about a person or a machine.",
        ),
    ] = False,
    artifacts: Annotated[
        bool, typer.Option("--artifacts", help="List each artifact, not only each kind.")
    ] = False,
    dir: Dir = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show one bundle: components, artifacts by kind, producers, coverage, generations.

    --privacy reads every artifact of it and lists absolute paths, addresses, and the names of this user and host. Text
    that is compressed or encoded inside an artifact is not seen.
    """
    with reporting(json=json, debug=debug) as out:
        shelf = Shelf(out, dir=dir, namespace=namespace)
        fid = shelf.resolve(id)
        bundle = shelf.bundle(fid)
        document = _document(shelf, fid, bundle)
        if privacy:
            document["privacy"] = _privacy(out, shelf, bundle) if bundle else []
            if any(found["reveals"] for found in document["privacy"]):
                out.code = ExitCode.FOUND
        out.answer(document, _Drawing(artifacts=artifacts).draw)


def _document(shelf: Shelf, fid: str, bundle: Bundle | None) -> dict[str, Any]:
    head = shelf.store.read_head(fid)
    stored = shelf.fingerprint(fid) if bundle is None else None
    components = bundle.fingerprint if bundle else stored.components if stored else {}
    return {
        **shelf.place,
        "id": fid,
        **text.summary(components),
        "components": components,
        "generation": bundle.generation if bundle else None,
        "parent": bundle.parent if bundle else None,
        "generations": [
            {"generation": one.generation, "digest": one.digest, "committed": one == head}
            for one in shelf.store.generations(fid)
        ],
        **(_contents(shelf, bundle) if bundle else {}),
    }


def _contents(shelf: Shelf, bundle: Bundle) -> dict[str, Any]:
    return {
        "facts": dict(bundle.producers),
        "cold_s": dict(bundle.cold),
        "shapes": text.labels(bundle.coverage),
        "units": len(bundle.coverage.unit_ids),
        "kinds": _kinds(bundle.entries),
        "producers": [
            {"key": key, "artifacts": count, "trusted": key in shelf.trusted}
            for key, count in sorted(Counter(entry.producer for entry in bundle.entries).items())
        ],
        "contributions": sorted({entry.contribution for entry in bundle.entries}),
        "tombstones": [{"raw_digest": one.raw_digest, "reason": one.reason} for one in bundle.tombstones],
        "artifacts": [_artifact(entry) for entry in bundle.entries],
    }


def _kinds(entries: tuple[Entry, ...]) -> list[dict[str, Any]]:
    by_kind: dict[str, list[Entry]] = {}
    for entry in entries:
        by_kind.setdefault(entry.kind, []).append(entry)
    return [
        {
            "kind": kind,
            "artifacts": len(found),
            "inline": sum(entry.inline is not None for entry in found),
            "raw_bytes": sum(entry.raw_size for entry in found),
            "stored_bytes": sum(entry.stored_size for entry in found),
        }
        for kind, found in sorted(by_kind.items())
    ]


def _artifact(entry: Entry) -> dict[str, Any]:
    return {
        "identity": entry.identity.id,
        "kind": entry.kind,
        "key": entry.key,
        "guards": entry.guards,
        "requires": dict(entry.requires),
        "raw_digest": entry.raw_digest,
        "raw_bytes": entry.raw_size,
        "stored_digest": entry.stored_digest,
        "stored_bytes": entry.stored_size,
        "inline": entry.inline is not None,
        "accepted": text.utc(entry.accepted),
        "contribution": entry.contribution,
        "producer": entry.producer,
        "partners": list(entry.partners),
    }


def _privacy(out: Output, shelf: Shelf, bundle: Bundle) -> list[dict[str, Any]]:
    """What the artifacts and the document itself say about who made them."""
    from cachekit.bundle.document import to_payload
    from cachekit.cli import privacy
    from cachekit.cli.reading import artifacts_of

    found = privacy.Findings(privacy.this_machine())
    found.look("document", to_payload(bundle))
    for artifact in artifacts_of(out, shelf.store, bundle):
        found.look(f"{artifact.kind} {artifact.key}", artifact.data)
    return [
        {
            "kind": one.kind,
            "text": one.text,
            "reveals": one.reveals,
            "count": one.count,
            "in": list(one.places),
        }
        for one in found.sorted()
    ]


class _Drawing:
    """The document as people see it."""

    def __init__(self, *, artifacts: bool) -> None:
        self._artifacts = artifacts

    def draw(self, document: Document, console: Console) -> None:
        """Everything, the most general first; with ``--privacy`` only what that found."""
        console.print(f"{document['id']}  ({document['namespace']})", style="bold")
        if "privacy" in document:
            _draw_privacy(document["privacy"], console)
            return
        self._components(document, console)
        if document["generation"] is None:
            console.print("no bundle was ever committed for it")
            return
        self._contents(document, console)
        if self._artifacts:
            self._entries(document, console)

    def _components(self, document: Document, console: Console) -> None:
        table = text.table("component", "value")
        for path, value in text.leaves("", document["components"]):
            text.row(table, path, text.value(value))
        console.print(table)

    def _contents(self, document: Document, console: Console) -> None:
        table = text.table(
            "kind", "artifacts", "inline", "raw", "stored", right=("artifacts", "inline", "raw", "stored")
        )
        for one in document["kinds"]:
            sizes = text.size(one["raw_bytes"]), text.size(one["stored_bytes"])
            text.row(table, one["kind"], one["artifacts"], one["inline"], *sizes)
        console.print(table)
        facts = text.table("fact", "value")
        text.row(facts, "shapes", " ".join(document["shapes"]) or "-")
        text.row(facts, "units", document["units"])
        text.row(facts, "generation", document["generation"])
        for one in document["generations"]:
            state = "committed" if one["committed"] else "kept"
            text.row(facts, f"document {one['generation']}", f"{text.short(one['digest'])} {state}")
        for one in document["producers"]:
            trust = "trusted" if one["trusted"] else "not trusted here"
            text.row(
                facts,
                "producer key",
                f"{text.short(one['key'])} {text.plural(one['artifacts'], 'artifact')}, {trust}",
            )
        for name, value in (*text.leaves("", document["facts"]), *text.leaves("cold", document["cold_s"])):
            text.row(facts, name, text.value(value))
        for one in document["tombstones"]:
            text.row(facts, "withdrawn", f"{text.short(one['raw_digest'])} {one['reason']}")
        console.print(facts)

    def _entries(self, document: Document, console: Console) -> None:
        table = text.table("kind", "key", "guards", "requires", "raw", "accepted", right=("raw",))
        for one in document["artifacts"]:
            needed = " ".join(f"{name}={value}" for name, value in one["requires"].items())
            size, accepted = text.size(one["raw_bytes"]), text.local(one["accepted"])
            text.row(table, one["kind"], one["key"], one["guards"], needed, size, accepted)
        console.print(table)


def _folded(found: list[dict[str, Any]]) -> list[tuple[str, str, int, str]]:
    """Paths of one folder in one line: a bundle with compiled kernels names hundreds of headers."""
    folders: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in found:
        folder = "/".join(one["text"].split("/", _FOLDED_DEPTH + 1)[: _FOLDED_DEPTH + 1])
        folders.setdefault((one["kind"], folder), []).append(one)
    return [
        (
            kind,
            some[0]["text"] if len(some) == 1 else f"{folder}/ ({text.plural(len(some), 'path')})",
            sum(one["count"] for one in some),
            some[0]["in"][0],
        )
        for (kind, folder), some in folders.items()
    ]


def _draw_privacy(found: list[dict[str, Any]], console: Console) -> None:
    if not found:
        console.print("nothing found in it that tells about a person or a machine")
        return
    table = text.table("found", "text", "times", "first in", right=("times",))
    for kind, what, count, where in _folded(found):
        text.row(table, kind, what, count, where)
    console.print(table)
    telling = sum(one["reveals"] for one in found)
    console.print(f"{telling} of {len(found)} tell about a person or a machine")
