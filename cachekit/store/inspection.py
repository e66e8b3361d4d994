"""What can still be wrong with an artifact or a statement whose bytes are those that were signed.

Nobody who starts needs this: torch's own keys decide there. `cachekit verify` reports it, `cachekit.store.repair` takes
out what fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from cachekit.bundle import canonical, signing
from cachekit.bundle.artifact import Artifact, guards_of, references_of
from cachekit.bundle.bundle import Bundle, Entry
from cachekit.errors import CorruptError
from cachekit.store.base import Store

if TYPE_CHECKING:
    from cachekit.bundle.signing import PublicKey


def check_description(artifact: Artifact, entry: Entry) -> None:
    """Raises `CorruptError` if an artifact that was admitted is not what the bundle says of it."""
    if guards_of(artifact.kind, artifact.data) != entry.guards:
        raise CorruptError("its guards are not those that the bundle names")
    if artifact.kind == "aot_autograd":
        partners = sorted(map(str, references_of(artifact.data)))
        if partners != list(entry.partners):
            raise CorruptError("its partners are not those that the bundle names")


def statements(bundle: Bundle) -> dict[tuple[str, str], list[Entry]]:
    """The entries by the (digest, producer) of the statement they came with, sorted."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in bundle.entries:
        found.setdefault((entry.contribution, entry.producer), []).append(entry)
    return dict(sorted(found.items()))


def check_statement(
    store: Store, digest: str, producer: str, entries: Iterable[Entry], trusted: Mapping[str, PublicKey]
) -> bool:
    """Whether the producer's key is trusted here, so that his statement could be checked.

    A producer whose key is not vouches for nothing: whoever merged and signed the bundle does. Raises `NotFoundError`,
    `CorruptError` or `StoreError` if the statement cannot be read, `TrustError` if the producer did not sign it, and
    `CorruptError` if it does not name an entry with its bytes.
    """
    envelope = store.read_contribution(digest)
    key = trusted.get(producer)
    if key is None:
        return False
    signed = signing.verify(envelope, {producer: key}, payload_type=signing.CONTRIBUTION_TYPE)
    named = _named(canonical.loads(signed.payload))
    for entry in entries:
        if named.get(entry.identity.id) != entry.raw_digest:
            raise CorruptError(f"it does not name {entry.kind} {entry.key} with these bytes")
    return True


def _named(statement: object) -> dict[object, object]:
    """The raw digests that a statement names, by identity."""
    listed = statement.get("artifacts") if isinstance(statement, Mapping) else None
    return {
        one.get("id"): one["raw"].get("sha256")
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, Mapping) and isinstance(one.get("id"), str) and isinstance(one.get("raw"), Mapping)
    }
