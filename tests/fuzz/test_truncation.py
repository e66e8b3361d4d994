"""Everything that is decoded, cut short after every single byte."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from cachekit.bundle import canonical, from_payload, guards_of, megacache, references_of, scan, signing
from cachekit.bundle.document import coverage_from_json, coverage_json
from cachekit.errors import CorruptError, TrustError
from cachekit.identity.fingerprint import Fingerprint
from cachekit.store.base import Head
from cachekit.store.packing import pack, unpack
from tests.fuzz import samples

Decoder = Callable[[bytes], object]
ENVELOPE = signing.sign(samples.payload(), samples.KEY)
NOISE = bytes(range(256)) * 2
COVERAGE = canonical.dumps(coverage_json(samples.bundle().coverage))

CASES: dict[str, tuple[bytes, Decoder]] = {
    "torch's wire format": (samples.wire(), megacache.decode),
    "signed document": (ENVELOPE, lambda data: signing.verify(data, samples.TRUSTED)),
    "document": (samples.payload(), from_payload),
    "blob": (pack(NOISE), lambda data: unpack(data, len(NOISE))),
    "head.json": (Head(7, "a" * 64).to_bytes(), Head.from_bytes),
    "coverage": (COVERAGE, lambda data: coverage_from_json(canonical.loads(data))),
    "fingerprint": (canonical.dumps(samples.COMPONENTS), Fingerprint.from_json),
    "inductor pickle": (samples.pickled("inductor"), lambda data: scan.check("inductor", data)),
    "aot_autograd pickle": (samples.pickled("aot_autograd"), lambda data: scan.check("aot_autograd", data)),
    "autotune entry": (samples.artifacts()[-1].data, lambda data: scan.check("autotune", data)),
}


@pytest.mark.parametrize("name", CASES)
def test_cut_short_anywhere_is_corrupt(name: str) -> None:
    """The whole is accepted and no beginning of it is: each is corrupt, not untrusted and not a foreign error."""
    whole, decode = CASES[name]
    decode(whole)
    started = time.process_time()
    for length in range(len(whole)):
        with pytest.raises(CorruptError):
            decode(whole[:length])
    assert time.process_time() - started < 10


def test_wire_format_cut_short_with_a_right_checksum_is_corrupt_or_whole_blocks() -> None:
    """Behind a checksum that fits, only a cut between two blocks leaves a bundle; it holds what is before it."""
    body, everything = samples.wire()[4:], samples.artifacts()
    whole = []
    for length in range(len(body)):
        try:
            found = megacache.decode(samples.sealed(body[:length]))
        except CorruptError:
            continue
        whole.append(length)
        assert all(artifact in everything for artifact in found)
    # The version alone, and after each of the blocks but the last: three types, twice.
    assert len(whole) == 6


def test_search_in_a_pickle_cut_short_gives_an_answer_or_our_error() -> None:
    """Guards and partners are searched before anything is scanned, so the search stands on its own."""
    for kind in ("inductor", "aot_autograd"):
        whole = samples.pickled(kind, guards=samples.GUARDS)
        for length in range(len(whole)):
            for search in (lambda data, kind=kind: guards_of(kind, data), references_of):
                with contextlib.suppress(CorruptError):
                    search(whole[:length])


def test_document_signed_when_it_was_already_cut_short_is_corrupt() -> None:
    """A writer that signs half a document publishes nothing that anybody believes."""
    payload = samples.payload()
    for length in range(0, len(payload), 7):
        signed = signing.verify(signing.sign(payload[:length], samples.KEY), samples.TRUSTED)
        with pytest.raises(CorruptError):
            from_payload(signed.payload)


def test_signature_cut_short_is_not_trusted() -> None:
    """An envelope that is whole, with half a signature in it, is a matter of trust."""
    import base64
    import json

    envelope = json.loads(ENVELOPE)
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    for length in range(len(signature)):
        envelope["signatures"][0]["sig"] = base64.b64encode(signature[:length]).decode()
        with pytest.raises(TrustError):
            signing.verify(json.dumps(envelope).encode(), samples.TRUSTED)
