"""The order of checks: what fails several is reported by the first, on the way of a document and of an artifact."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest

from cachekit.bundle import Artifact, Bundle, Entry, canonical, signing
from cachekit.bundle.document import to_payload
from cachekit.bundle.limits import Limits
from cachekit.bundle.signing import SigningKey
from cachekit.errors import (
    CachekitError,
    CorruptError,
    LimitError,
    NewerSchemaError,
    RollbackError,
    TrustError,
)
from cachekit.store import admission
from cachekit.store.admission import Place
from cachekit.store.base import Head
from cachekit.store.packing import pack
from tests.unit.store.world import FINGERPRINT, World, inductor, key_of

SEEN = Head(9, "9" * 64)
PLACE = Place("local", FINGERPRINT.id, Head(3, "3" * 64))


@pytest.fixture
def bundle(world: World) -> Bundle:
    """A bundle that fits `PLACE`."""
    return replace(world.save(inductor("a")).bundle, generation=3)


def payload(bundle: Bundle, **changes: object) -> bytes:
    """Its document, with other top-level fields."""
    return canonical.dumps(canonical.loads(to_payload(bundle)) | changes)


def test_a_good_document_is_admitted(bundle: Bundle, signing_key: SigningKey) -> None:
    """Signed, known, within limits, of this place, and as new as what was seen."""
    envelope = signing.sign(to_payload(bundle), signing_key)
    trusted = {signing_key.keyid: signing_key.public}

    assert admission.document(envelope, PLACE, trusted) == bundle
    assert admission.document(envelope, PLACE, trusted, seen=PLACE.head) == bundle
    assert admission.document(envelope, PLACE, trusted, seen=Head(2, "2" * 64)) == bundle


# Each failure, with everything that comes after it failing as well.
DOCUMENTS: dict[str, tuple[type[CachekitError], str]] = {
    "signature": (TrustError, "not among"),
    "newer schema": (NewerSchemaError, "schema 99"),
    "limits": (LimitError, "artifacts"),
    "structure": (CorruptError, "coverage"),
    "place": (TrustError, "moved it here"),
    "freshness": (RollbackError, "generation 9 was seen here before"),
}


@pytest.mark.parametrize("first", DOCUMENTS)
def test_a_document_is_refused_by_the_first_check_that_fails(
    bundle: Bundle, signing_key: SigningKey, first: str
) -> None:
    """Signature, then schema and limits, then freshness: later faults of the same document are not reached."""
    order = list(DOCUMENTS)

    def fails(check: str) -> bool:
        return order.index(check) >= order.index(first)

    content = replace(bundle, namespace="elsewhere") if fails("place") else bundle
    changes: dict[str, object] = {"coverage": 7} if fails("structure") else {}
    if fails("newer schema"):
        changes |= {"schema": 99, "min_reader": 99}
    key = signing.generate() if fails("signature") else signing_key
    limits = Limits(max_artifacts=0) if fails("limits") else Limits()
    kind, words = DOCUMENTS[first]

    with pytest.raises(kind, match=words) as caught:
        admission.document(
            signing.sign(payload(content, **changes), key),
            PLACE,
            {signing_key.keyid: signing_key.public},
            seen=SEEN,
            limits=limits,
        )

    assert type(caught.value) is kind


def test_a_rollback_names_key_generations_and_what_to_do(bundle: Bundle, signing_key: SigningKey) -> None:
    """The reason that a session reports is enough to act on."""
    envelope = signing.sign(to_payload(bundle), signing_key)

    with pytest.raises(RollbackError) as caught:
        admission.document(envelope, PLACE, {signing_key.keyid: signing_key.public}, seen=SEEN)

    for word in ("generation 3", "generation 9", signing_key.keyid[:12], "cachekit verify --repair"):
        assert word in str(caught.value)


def test_another_document_under_a_number_that_was_seen_is_no_news(
    bundle: Bundle, signing_key: SigningKey
) -> None:
    """A store that was turned back and written to again reaches the same number with other content."""
    with pytest.raises(RollbackError, match="another"):
        admission.document(
            signing.sign(to_payload(bundle), signing_key),
            PLACE,
            {signing_key.keyid: signing_key.public},
            seen=Head(3, "4" * 64),
        )


class Attack:
    """A pickle that would run a command."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("true",)


def entry_of(data: bytes, **changes: object) -> tuple[Entry, bytes]:
    """An entry for these bytes, and what is stored."""
    stored = pack(data)
    made = Artifact("inductor", key_of("inductor", "a"), data)
    return replace(
        Entry.of(made, stored, accepted=1, contribution="", producer=""),
        **changes,  # type: ignore[arg-type]
    ), stored


# In order, each with everything after it wrong as well.
ARTIFACTS: dict[str, tuple[type[CachekitError], str]] = {
    "stored digest": (CorruptError, "as stored"),
    "announced size": (CorruptError, "claims to unpack"),
    "raw digest": (CorruptError, "unpacked"),
    "key": (CorruptError, r"\.\./"),
    "scan": (TrustError, "system"),
}


@pytest.mark.parametrize("first", ARTIFACTS)
def test_an_artifact_is_refused_by_the_first_check_that_fails(first: str) -> None:
    """Digests and sizes, then the key, then the scan: no pickle is looked at before its bytes are those announced."""
    order = list(ARTIFACTS)
    wrong: dict[str, dict[str, object]] = {
        "stored digest": {"stored_digest": "0" * 64},
        "announced size": {"raw_size": 1},
        "raw digest": {"raw_digest": "0" * 64},
        "key": {"key": "../../etc/passwd"},
        "scan": {},
    }
    changes: dict[str, object] = {}
    for check in order[order.index(first) :]:
        changes |= wrong[check]
    entry, stored = entry_of(pickle.dumps(Attack()), **changes)
    kind, words = ARTIFACTS[first]

    with pytest.raises(kind, match=words):
        admission.artifact(entry, stored)


def test_a_good_artifact_is_admitted() -> None:
    """What torch pickles passes all of them."""
    entry, stored = entry_of(pickle.dumps({"a": 1}))

    assert pickle.loads(admission.artifact(entry, stored).data) == {"a": 1}
