"""What ``verify`` checks beside the profiles: modes, strange files, keys, the memory of generations, the manifest.

Changes nothing. Putting it right is `cachekit.cli.mending`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cachekit.cli.checks import Finding, settled
from cachekit.errors import CachekitError, NewerSchemaError, NotFoundError
from cachekit.store import files, keys, oddities, quarantine
from cachekit.store.oddities import Oddity

if TYPE_CHECKING:
    from pathlib import Path

    from cachekit.cli.shelf import Shelf

_CODES = {"type": "type", "mode": "mode"}
"""Oddities that are problems; the others are notes."""


def oddities_of(shelf: Shelf) -> list[Oddity]:
    """Everything odd in the folders that are ours. Raises `StoreError`."""
    settings = shelf.settings
    return [
        *oddities.private(settings.store_root),
        *oddities.namespace(settings.store_root / settings.namespace),
        *oddities.private(settings.keys_root),
        *oddities.private(settings.keys_root / "trusted"),
        *oddities.private(settings.seen_root),
    ]


def findings(shelf: Shelf) -> tuple[list[Finding], list[Finding]]:
    """Problems and notes. Raises `StoreError` if a folder cannot be listed."""
    problems: list[Finding] = []
    notes: list[Finding] = []
    for odd in oddities_of(shelf):
        found = Finding("", shelf.relative(odd.path), _CODES.get(odd.kind, "note"), odd.message)
        (problems if odd.kind in _CODES else notes).append(found)
    problems += [*_keys(shelf), *_memory(shelf)]
    wrong, newer = _manifest(shelf)
    return problems + wrong, notes + newer


def quarantined(shelf: Shelf) -> dict[str, Any]:
    """Where damaged files went, how many, and what is wrong with the newest of each."""
    folder = shelf.settings.store_root / shelf.settings.namespace / "quarantine"
    try:
        kept = quarantine.kept(folder)
    except CachekitError as exc:
        return {"folder": str(folder), "files": 0, "bytes": 0, "kept": [], "problem": str(exc)}
    return {
        "folder": str(folder),
        "files": len(kept),
        "bytes": sum(one.size for one in kept),
        "kept": [{"file": one.path.name, "bytes": one.size, "why": one.why} for one in kept],
    }


def _keys(shelf: Shelf) -> Iterator[Finding]:
    root = shelf.settings.keys_root
    try:
        own = keys.load(root)
        if own is not None and own.keyid not in shelf.trusted:
            why = f"this user's key {own.keyid} is not among the trusted ones, so nobody reads what it signs"
            yield Finding("", shelf.relative(root / "signing.pem"), "untrusted", why)
    except CachekitError as exc:
        yield Finding("", shelf.relative(root / "signing.pem"), exc.code, str(exc))
    try:
        public = keys.public_files(root)
    except CachekitError as exc:
        yield Finding("", shelf.relative(root / "trusted"), exc.code, str(exc))
        return
    for path in public:
        try:
            keys.read_public(path)
        except NotFoundError:
            continue  # revoked since it was listed
        except CachekitError as exc:
            yield Finding("", shelf.relative(path), exc.code, str(exc))


def _memory(shelf: Shelf) -> Iterator[Finding]:
    try:
        known = shelf.seen.known()
    except CachekitError as exc:
        yield Finding("", shelf.relative(shelf.seen.folder), exc.code, str(exc))
        return
    for fid in known:
        try:
            shelf.seen.read(fid)
        except CachekitError as exc:
            yield Finding(fid, shelf.relative(shelf.seen.path(fid)), exc.code, str(exc))


def _manifest(shelf: Shelf) -> tuple[list[Finding], list[Finding]]:
    """Whether it opens, and says of every bundle what the store says; looking migrates nothing."""
    path = shelf.settings.manifest_path
    if not path.exists() and not path.is_symlink():
        return [], []  # made with the next save
    try:
        from cachekit.manifest.engine import REVISIONS, revision

        if not files.is_file(path):
            return [_of_manifest(path, "type", "something else in the place of a file")], []
        found = revision(path)
        if found is None:
            return [_of_manifest(path, "manifest", "it is empty")], []
        if found != REVISIONS[-1]:
            return [], [
                _of_manifest(
                    path, "note", f"has revision {found}; the next save brings it to {REVISIONS[-1]}"
                )
            ]
        return [_of_manifest(path, "manifest", told) for told in _lasting_disagreements(shelf)], []
    except NewerSchemaError as exc:
        return [], [_of_manifest(path, "note", f"left untouched: {exc}")]
    except CachekitError as exc:
        return [_of_manifest(path, exc.code, str(exc))], []


def _readable(shelf: Shelf, fid: str) -> bool:
    from cachekit.store.fetch import fetch

    try:
        return fetch(shelf.store, fid, shelf.trusted) is not None
    except CachekitError:
        return False


def _of_manifest(path: Path, code: str, message: str) -> Finding:
    return Finding("", path.name, code, message)


def _lasting_disagreements(shelf: Shelf) -> list[str]:
    """Those that stay as they are: while others save, the manifest is behind too, but each time at another place."""
    lasting = _disagreements(shelf)

    def gone() -> bool:
        now = _disagreements(shelf) if lasting else []
        lasting[:] = [told for told in lasting if told in now]
        return not lasting

    settled(gone)
    return lasting


def _disagreements(shelf: Shelf) -> list[str]:
    """In words; a bundle that cannot be read is no business of the manifest's."""
    from cachekit.manifest import Manifest

    with Manifest(shelf.settings.manifest_path) as manifest:
        indexed = {
            one.fingerprint_id: one.generation
            for one in manifest.bundles()
            if one.namespace == shelf.settings.namespace
        }
    told = []
    for fid in shelf.store.profiles():
        try:
            head = shelf.store.read_head(fid)
        except CachekitError:
            indexed.pop(fid, None)
            continue
        if head is None:
            continue
        generation = indexed.pop(fid, None)
        if generation != head.generation and _readable(shelf, fid):
            is_at = "does not have it" if generation is None else f"has generation {generation}"
            told.append(f"the store has generation {head.generation} of {fid[:12]}, the manifest {is_at}")
    return told + [f"it has {fid[:12]}, which the store has no more" for fid in indexed]
