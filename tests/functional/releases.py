"""Stores of other releases for tests: those that were released, unpacked, and what a newer one would leave behind.

There is no newer release, so one is invented: its documents name a later schema, and say things that this one does not
know. They are signed by the store's own key, as an upgrade on the same machine would.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cachekit.bundle import canonical, signing, to_payload
from cachekit.store.base import Head
from tests.fixtures.stores.generate import Keeper

STORES = Path(__file__).parents[1] / "fixtures" / "stores"
RELEASED = tuple(sorted(path.name.removesuffix(".tar.xz") for path in STORES.glob("*.tar.xz")))


def unpack(name: str, into: Path) -> dict[str, Any]:
    """Put a released store into an empty folder; returns what must be read from it."""
    with tarfile.open(STORES / f"{name}.tar.xz") as archive:
        archive.extractall(into, filter="tar")
    found: dict[str, Any] = json.loads((STORES / f"{name}.json").read_text(encoding="utf-8"))
    return found


def files(folder: Path, *, without: tuple[str, ...] = ()) -> dict[str, str]:
    """The sha256 of every file that is neither a lock nor SQLite's while it looks; private folders are left out."""
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not (name := path.relative_to(folder).as_posix()).startswith(("process/", *without))
        and not path.name.endswith((".lock", "-shm", "-wal"))
    }


def _commit(keeper: Keeper, fid: str, **said: Any) -> None:
    """A next generation that says more."""
    head = keeper.store.read_head(fid)
    assert head is not None
    bundle = replace(keeper.fetch(fid), generation=head.generation + 1, parent=head.digest)
    document = canonical.loads(to_payload(bundle)) | said
    envelope = signing.sign(canonical.dumps(document), keeper.key)
    digest = keeper.store.write_generation(fid, bundle.generation, envelope)
    keeper.store.move_head(fid, head, Head(bundle.generation, digest))


def _bundle_for_newer_readers(folder: Path, fid: str) -> None:
    _commit(Keeper(folder), fid, schema=2, min_reader=2, artifacts={"in": "another form"})


def _bundle_that_says_more(folder: Path, fid: str) -> None:
    _commit(Keeper(folder), fid, schema=2, min_reader=1, speed={"of": "light"})


def _more_in_the_head(folder: Path, fid: str) -> None:
    path = folder / "store" / "local" / "profiles" / fid / "head.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "expires": 1}))


def _more_in_what_was_seen(folder: Path, fid: str) -> None:
    path = folder / "seen" / "local" / "local" / f"{fid}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "expires": 1}))


def _another_kind_of_key(folder: Path, fid: str) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed448PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "keys" / "signing.pem").write_bytes(pem)


def _later_revision(folder: Path, fid: str) -> None:
    connection = sqlite3.connect(folder / "manifest.sqlite3")
    with connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.execute("CREATE TABLE of_a_later_release (x)")
    connection.close()


def _contribution_and_profile(folder: Path, fid: str) -> None:
    """A statement and a fingerprint, each of a later schema, beside what we know."""
    keeper = Keeper(folder)
    statement = canonical.dumps({"schema": 9, "min_reader": 9})
    keeper.store.write_contribution(
        signing.sign(statement, keeper.key, payload_type=signing.CONTRIBUTION_TYPE)
    )
    components = canonical.dumps({"schema": 9, "everything": "is different"})
    keeper.store.write_profile(hashlib.sha256(components).hexdigest(), components)


NEWER: dict[str, Callable[[Path, str], None]] = {
    "a bundle for newer readers": _bundle_for_newer_readers,
    "a bundle that says more": _bundle_that_says_more,
    "more in the head": _more_in_the_head,
    "more in what was seen": _more_in_what_was_seen,
    "another kind of key": _another_kind_of_key,
    "a later revision of the manifest": _later_revision,
    "a later contribution and fingerprint": _contribution_and_profile,
}
"""What makes a store that of a newer release; each takes the folder and the id of a profile in it."""
