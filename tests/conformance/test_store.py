"""What every store promises, whatever it keeps its bytes in."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from cachekit.errors import (
    ConfigurationError,
    ConflictError,
    CorruptError,
    LimitError,
    NewerSchemaError,
    NotFoundError,
)
from cachekit.store.base import Head, Store

if TYPE_CHECKING:
    from tests.conformance.conftest import Backend

FID = "f" * 64
OTHER = "0" * 64


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _commit(store: Store, fid: str, data: bytes, *, after: Head | None = None) -> Head:
    generation = after.generation + 1 if after else 1
    head = Head(generation, store.write_generation(fid, generation, data))
    store.move_head(fid, after, head)
    return head


def test_it_is_a_store(store: Store) -> None:
    """The implementation has every method of the interface."""
    assert isinstance(store, Store)
    assert store.namespace == "local"


def test_an_empty_store_holds_nothing(store: Store) -> None:
    """Looking into a store that was never written finds nothing and fails at nothing."""
    assert store.read_head(FID) is None
    assert store.generations(FID) == []
    assert store.profiles() == []
    assert store.contributions() == []
    assert store.read_profile(FID) is None
    assert store.has_blob(_sha256(b"x")) is False


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 4096])
def test_a_blob_is_read_as_written(store: Store, data: bytes) -> None:
    """A blob is named by the sha256 of its bytes and comes back the same."""
    digest = store.write_blob(data)

    assert digest == _sha256(data)
    assert store.has_blob(digest)
    assert store.read_blob(digest) == data


def test_writing_a_blob_twice_is_the_same_as_once(store: Store) -> None:
    """Put-if-absent is idempotent."""
    assert store.write_blob(b"once") == store.write_blob(b"once")
    assert store.read_blob(_sha256(b"once")) == b"once"


def test_an_absent_blob_is_not_found(store: Store) -> None:
    """Absence has its own error, which is not that of a store that cannot be read."""
    store.write_blob(b"another")

    with pytest.raises(NotFoundError):
        store.read_blob(_sha256(b"absent"))


def test_a_blob_over_its_size_is_refused(store: Store) -> None:
    """A reader that knows the size never takes in more."""
    digest = store.write_blob(b"0123456789")

    assert store.read_blob(digest, max_bytes=10) == b"0123456789"
    with pytest.raises(LimitError):
        store.read_blob(digest, max_bytes=9)


@pytest.mark.parametrize("damaged", [b"", b"good byte", b"good bytez", b"good bytes and more"])
def test_a_damaged_blob_is_told_and_replaced(backend: Backend, damaged: bytes) -> None:
    """Truncated, altered or grown bytes are never handed out, and writing the blob again repairs it."""
    store = backend.store
    digest = store.write_blob(b"good bytes")
    backend.spoil_blob(digest, damaged)

    with pytest.raises(CorruptError, match=digest):
        store.read_blob(digest)
    assert store.write_blob(b"good bytes") == digest
    assert store.read_blob(digest) == b"good bytes"


def test_a_quarantined_blob_is_absent(backend: Backend) -> None:
    """After a damaged blob was put aside, the store says that it is not there; doing so twice is fine."""
    store = backend.store
    digest = store.write_blob(b"good bytes")
    backend.spoil_blob(digest, b"bad bytes")

    store.quarantine_blob(digest)
    store.quarantine_blob(digest)

    assert not store.has_blob(digest)
    with pytest.raises(NotFoundError):
        store.read_blob(digest)


def test_blobs_are_not_shared_across_namespaces(backend: Backend) -> None:
    """Knowing a digest in one namespace gives nothing in another."""
    digest = backend.store.write_blob(b"mine")
    _commit(backend.store, FID, b"{}")

    other = backend.open("other")

    assert other.namespace == "other"
    assert not other.has_blob(digest)
    assert other.profiles() == []


def test_a_head_is_committed_and_moved(backend: Backend) -> None:
    """A document counts once the head names it, and every handle sees that."""
    store = backend.store
    digest = store.write_generation(FID, 1, b"one")
    assert store.read_head(FID) is None

    store.move_head(FID, None, Head(1, digest))
    second = _commit(backend.open(), FID, b"two", after=Head(1, digest))

    assert store.read_head(FID) == second == Head(2, _sha256(b"two"))
    assert store.read_generation(FID, second) == b"two"
    assert store.read_generation(FID, Head(1, digest)) == b"one"


def test_moving_from_a_head_that_is_gone_is_a_conflict(store: Store) -> None:
    """Compare-and-swap: whoever comes second is told and changes nothing."""
    first = _commit(store, FID, b"one")
    mine = Head(2, store.write_generation(FID, 2, b"mine"))
    theirs = _commit(store, FID, b"theirs", after=first)

    with pytest.raises(ConflictError):
        store.move_head(FID, first, mine)
    with pytest.raises(ConflictError):
        store.move_head(FID, None, Head(1, first.digest))

    assert store.read_head(FID) == theirs


def test_a_first_head_cannot_expect_another(store: Store) -> None:
    """Expecting a head where none is, is a conflict as well."""
    store.write_generation(FID, 2, b"two")

    with pytest.raises(ConflictError):
        store.move_head(FID, Head(1, _sha256(b"one")), Head(2, _sha256(b"two")))
    assert store.read_head(FID) is None


def test_a_head_cannot_name_what_was_never_written(store: Store) -> None:
    """The document comes first; a head never dangles."""
    with pytest.raises(NotFoundError):
        store.move_head(FID, None, Head(1, _sha256(b"nowhere")))
    assert store.read_head(FID) is None


def test_a_head_never_goes_back(store: Store) -> None:
    """A lower or equal generation is refused, even by somebody who holds the present head."""
    first = _commit(store, FID, b"one")
    second = _commit(store, FID, b"two", after=first)
    again = Head(2, store.write_generation(FID, 2, b"two again"))

    for new in (first, again):
        with pytest.raises(ConfigurationError):
            store.move_head(FID, second, new)
    assert store.read_head(FID) == second


def test_racing_writers_have_exactly_one_winner(backend: Backend) -> None:
    """Of many that move the same head at once, one succeeds and the others are told."""
    first = _commit(backend.store, FID, b"one")
    mine = [Head(2, backend.store.write_generation(FID, 2, b"by %d" % n)) for n in range(8)]
    won: list[Head] = []
    lost: list[Head] = []
    gate = threading.Barrier(len(mine))

    def race(head: Head) -> None:
        store = backend.open()
        gate.wait()
        try:
            store.move_head(FID, first, head)
        except ConflictError:
            lost.append(head)
        else:
            won.append(head)

    threads = [threading.Thread(target=race, args=(head,)) for head in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [backend.store.read_head(FID)] == won
    assert len(lost) == len(mine) - 1


def test_generations_are_listed_in_order(store: Store) -> None:
    """Committed or not, every document is listed, the tenth after the ninth."""
    written = [Head(n, store.write_generation(FID, n, b"%d" % n)) for n in (10, 9, 1)]

    assert store.generations(FID) == sorted(written, key=lambda head: head.generation)
    assert store.generations(OTHER) == []


def test_a_damaged_document_is_told_and_put_aside(backend: Backend) -> None:
    """A document whose bytes changed is never handed out and can be taken out of the way."""
    store = backend.store
    head = _commit(store, FID, b"document")
    backend.spoil_generation(FID, head, b"documenT")

    with pytest.raises(CorruptError):
        store.read_generation(FID, head)
    store.quarantine_generation(FID, head)
    store.quarantine_generation(FID, head)

    with pytest.raises(NotFoundError):
        store.read_generation(FID, head)
    assert store.generations(FID) == []


def test_a_document_over_its_size_is_refused(store: Store) -> None:
    """The limit on documents holds before anything is parsed."""
    head = _commit(store, FID, b"0123456789")

    with pytest.raises(LimitError):
        store.read_generation(FID, head, max_bytes=9)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"generation": 1}',
        b'{"digest": 1, "generation": 1}',
        b'{"digest": "../../x", "generation": 1}',
        b'{"digest": "%s", "generation": 0}' % (b"a" * 64),
        b'{"digest": "%s", "generation": true}' % (b"a" * 64),
        b'{"digest": "%s", "generation": 1.0}' % (b"a" * 64),
        b"[" * 100_000,
    ],
)
def test_a_damaged_head_is_told_and_can_be_discarded(backend: Backend, damaged: bytes) -> None:
    """A head that cannot be parsed is an error for readers and writers until it is put aside, and no longer."""
    store = backend.store
    first = _commit(store, FID, b"one")
    backend.spoil_head(FID, damaged)

    with pytest.raises(CorruptError):
        store.read_head(FID)
    with pytest.raises(CorruptError):
        store.move_head(FID, None, first)
    store.discard_head(FID)

    assert store.read_head(FID) is None
    store.move_head(FID, None, first)
    assert store.read_head(FID) == first


def test_the_head_of_a_newer_release_is_told_and_stays(backend: Backend) -> None:
    """A head that says more than this release knows is neither followed nor moved nor thrown away."""
    store = backend.store
    first = _commit(store, FID, b"one")
    next_one = Head(2, store.write_generation(FID, 2, b"two"))
    backend.spoil_head(FID, b'{"digest": "%s", "generation": 1, "more": 1}' % first.digest.encode())

    for use in (
        lambda: store.read_head(FID),
        lambda: store.move_head(FID, first, next_one),
        lambda: store.discard_head(FID),
        lambda: store.read_head(FID),
    ):
        with pytest.raises(NewerSchemaError, match="more"):
            use()


def test_discarding_a_good_head_does_nothing(store: Store) -> None:
    """Somebody may have repaired the head meanwhile; a readable head is never thrown away."""
    first = _commit(store, FID, b"one")

    store.discard_head(FID)
    store.discard_head(OTHER)

    assert store.read_head(FID) == first
    assert store.read_head(OTHER) is None


def test_contributions_are_kept_and_listed(backend: Backend) -> None:
    """A statement is named by its digest, kept once, and found by other handles."""
    store = backend.store
    digests = {store.write_contribution(data) for data in (b"b", b"a", b"b")}

    assert backend.open().contributions() == sorted(digests)
    assert store.read_contribution(_sha256(b"a")) == b"a"
    with pytest.raises(NotFoundError):
        store.read_contribution(_sha256(b"c"))


def test_profiles_are_kept_and_listed(store: Store) -> None:
    """A fingerprint's components come back as written, and the last ones written count."""
    store.write_profile(OTHER, b"{}")
    store.write_profile(FID, b"old")
    store.write_profile(FID, b"new")

    assert store.profiles() == [OTHER, FID]
    assert store.read_profile(FID) == b"new"


@pytest.mark.parametrize("bad", ["", ".", "..", "../x", "a/b", "A" * 64, "a\n", "a" * 129, "ä", "a\0"])
@pytest.mark.parametrize(
    "use",
    [
        lambda store, fid: store.read_head(fid),
        lambda store, fid: store.generations(fid),
        lambda store, fid: store.write_generation(fid, 1, b""),
        lambda store, fid: store.read_profile(fid),
        lambda store, fid: store.write_profile(fid, b""),
    ],
    ids=["read_head", "generations", "write_generation", "read_profile", "write_profile"],
)
def test_a_malformed_fingerprint_id_is_refused(
    store: Store, use: Callable[[Store, str], object], bad: str
) -> None:
    """No id can name a place outside its profile."""
    with pytest.raises(ConfigurationError):
        use(store, bad)
    assert store.profiles() == []


@pytest.mark.parametrize("bad", ["", "x", "../" + "a" * 61, "A" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n"])
def test_a_malformed_digest_is_refused(store: Store, bad: str) -> None:
    """No digest can name a place outside the blobs."""
    for use in (store.read_blob, store.has_blob, store.quarantine_blob, store.read_contribution):
        with pytest.raises(ConfigurationError):
            use(bad)


@pytest.mark.parametrize("bad", ["", "..", ".a", "A", "a/b", "a" * 64, "a b"])
def test_a_malformed_namespace_is_refused(backend: Backend, bad: str) -> None:
    """A namespace is one safe name."""
    with pytest.raises(ConfigurationError):
        backend.open(bad)


def test_publishing_may_be_entered_again_and_by_others(backend: Backend) -> None:
    """Whoever publishes keeps collection away, and nobody else who publishes."""
    with backend.store.publishing(), backend.store.publishing(), backend.open().publishing():
        assert backend.store.has_blob(backend.store.write_blob(b"x"))
