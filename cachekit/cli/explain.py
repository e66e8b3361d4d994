"""``cachekit explain``: the components in which two fingerprints differ, or a miss against the nearest one stored."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachekit.cli import text
from cachekit.cli.exit_codes import ExitCode
from cachekit.cli.options import Debug, Dir, Json, Namespace
from cachekit.cli.output import Document, Output
from cachekit.cli.shelf import Shelf, opened
from cachekit.errors import CachekitError, ConfigurationError, CorruptError, NotFoundError, StoreError

if TYPE_CHECKING:
    from rich.console import Console

    from cachekit.identity.fingerprint import Difference, Fingerprint

_MAX_FILE_BYTES = 64 * 2**20

_HELP = "A stored id or its beginning, a file with a fingerprint's JSON, or - for standard input."


def explain(
    first: Annotated[str, typer.Argument(metavar="ID", help=_HELP, show_default=False)],
    second: Annotated[
        str | None,
        typer.Argument(
            metavar="OTHER",
            help="What to compare it with, likewise. Default: the nearest one stored.",
            show_default=False,
        ),
    ] = None,
    *,
    host: Annotated[
        bool,
        typer.Option(
            "--host",
            help="Also tell which artifacts of the first one this machine may not use, and why. Needs torch.",
        ),
    ] = False,
    dir: Dir = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Name the components in which two fingerprints differ, or why one is a miss.

    With one argument it is compared with the nearest other fingerprint stored. Exits with 0 if there is nothing to
    explain: both are equal, or the one has a bundle.

    `cachekit.fingerprint(pipe).to_json()` gives the JSON; what `show --json` prints is read as well.
    """
    with opened(dir=dir, namespace=namespace, json=json, debug=debug) as (out, shelf):
        mine = _fingerprint(shelf, first)
        document = (
            _compared(shelf, mine, second) if second is not None else _against_nearest(out, shelf, mine)
        )
        if host:
            document["host"] = _unmet_here(shelf, mine)
        out.answer({**shelf.place, **document}, _draw)
        if document["verdict"] in ("different", "miss") or document.get("host"):
            out.code = ExitCode.FOUND


def _compared(shelf: Shelf, mine: Fingerprint, text_of_other: str) -> dict[str, Any]:
    theirs = _fingerprint(shelf, text_of_other)
    differences = mine.diff(theirs)
    return _document(mine, theirs, differences, verdict="different" if differences else "equal")


def _against_nearest(out: Output, shelf: Shelf, mine: Fingerprint) -> dict[str, Any]:
    from cachekit.identity.fingerprint import nearest

    others = []
    for fid in shelf.ids:
        try:
            other = shelf.fingerprint(fid) if fid != mine.id else None
        except CachekitError as exc:  # others can be compared all the same
            out.note(f"{fid} is passed over: {exc.diagnostics()}")
            continue
        others += [other] if other is not None else []
    stored = mine.id in shelf.ids and shelf.bundle(mine.id) is not None
    found = nearest(mine, others)
    theirs, differences = found if found is not None else (None, ())
    return _document(mine, theirs, differences, verdict="stored" if stored else "miss")


def _document(
    mine: Fingerprint, theirs: Fingerprint | None, differences: tuple[Difference, ...], *, verdict: str
) -> dict[str, Any]:
    """``verdict``: equal or different of two; stored (nothing to explain) or miss of one."""
    from cachekit.identity.fingerprint import ABSENT

    return {
        "verdict": verdict,
        "mine": {"id": mine.id, **text.summary(mine.components)},
        "theirs": {"id": theirs.id, **text.summary(theirs.components)} if theirs is not None else None,
        "differences": [
            {
                "component": one.path,
                # A side that lacks the component lacks the name here; null is a value.
                **{
                    side: value
                    for side, value in (("mine", one.mine), ("theirs", one.theirs))
                    if value is not ABSENT
                },
            }
            for one in differences
        ],
    }


def _unmet_here(shelf: Shelf, mine: Fingerprint) -> list[dict[str, Any]]:
    """What artifacts require and this host does not have. What can only be told by compiling is left out."""
    bundle = shelf.bundle(mine.id) if mine.id in shelf.ids else None
    if bundle is None:
        raise NotFoundError(
            f"no bundle of {text.short(mine.id)} is stored whose requirements could be compared"
        )
    from cachekit.bundle.artifact import unmet
    from cachekit.cli.toolchain import need_torch

    need_torch()
    from cachekit.identity import host_requirements
    from cachekit.runtime import kernels

    here = {**host_requirements(), **kernels.known_host()}
    counted = Counter(
        one for entry in bundle.entries for one in unmet(entry.requires, here) if one.found is not None
    )
    return [
        {"name": one.name, "required": one.wanted, "here": one.found, "artifacts": count}
        for one, count in sorted(counted.items())
    ]


def _fingerprint(shelf: Shelf, argument: str) -> Fingerprint:
    """What an argument means: an id if one starts so, else a file.

    Raises `NotFoundError` if it is neither.
    """
    if argument != "-" and not Path(argument).is_file():
        return _stored(shelf, shelf.resolve(argument))
    try:
        return _stored(shelf, shelf.resolve(argument))
    except (NotFoundError, ConfigurationError):
        return _from_file(argument)


def _stored(shelf: Shelf, fid: str) -> Fingerprint:
    found = shelf.fingerprint(fid)
    if found is None:
        raise NotFoundError(f"the components of {fid} are not stored")
    return found


def _from_file(argument: str) -> Fingerprint:
    from cachekit.bundle import canonical
    from cachekit.identity.fingerprint import Fingerprint

    data = _read(argument)
    try:
        loaded = canonical.loads(data)
        if isinstance(loaded, dict) and isinstance(loaded.get("components"), dict):
            loaded = loaded["components"]
        return Fingerprint.from_json(canonical.dumps(loaded))
    except CorruptError as exc:
        raise ConfigurationError(f"{argument} is not a fingerprint's JSON: {exc}") from exc


def _read(argument: str) -> bytes:
    if argument == "-":
        data = sys.stdin.buffer.read(_MAX_FILE_BYTES + 1)
    else:
        try:
            with Path(argument).open("rb") as file:
                data = file.read(_MAX_FILE_BYTES + 1)
        except OSError as exc:
            raise StoreError(f"cannot read {argument}: {exc.strerror}") from exc
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigurationError(f"{argument} has more than {_MAX_FILE_BYTES} bytes")
    return data


def _draw(document: Document, console: Console) -> None:
    mine, theirs, differences = document["mine"], document["theirs"], document["differences"]
    short = text.short(mine["id"])
    verdict = {
        "equal": f"{short}: both are the same fingerprint",
        "different": f"{short} differs in {text.plural(len(differences), 'component')}",
        "stored": f"{short} has a bundle: nothing is missed",
        "miss": f"{short} is a miss: no bundle of this fingerprint is stored",
    }
    console.print(verdict[document["verdict"]])
    if theirs is None and document["verdict"] in ("stored", "miss"):
        console.print("no other fingerprint is stored to compare it with")
    if theirs is not None and differences:
        what = f"{theirs['family']} on {theirs['device']}, torch {theirs['torch']}"
        console.print(text.printable(f"compared with {text.short(theirs['id'])} ({what})"))
        table = text.table("component", f"{short}", text.short(theirs["id"]))
        for one in differences:
            text.row(table, one["component"], _side(one, "mine"), _side(one, "theirs"))
        console.print(table)
    _draw_host(document, console)


def _draw_host(document: Document, console: Console) -> None:
    if "host" not in document:
        return
    if not document["host"]:
        console.print("this machine meets what its artifacts require")
        return
    table = text.table("required", "by the artifact", "here", "artifacts", right=("artifacts",))
    for one in document["host"]:
        text.row(table, one["name"], one["required"], one["here"], one["artifacts"])
    console.print(table)


def _side(difference: dict[str, Any], side: str) -> str:
    from cachekit.bundle import canonical

    return canonical.dumps(difference[side]).decode() if side in difference else "(absent)"
