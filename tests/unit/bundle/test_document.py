from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachekit.bundle import Bundle, Limits, canonical, complete, from_payload, merge, to_payload
from cachekit.bundle.bundle import SCHEMA
from cachekit.bundle.document import coverage_from_json, coverage_json
from cachekit.errors import CachekitError, ConfigurationError, CorruptError, LimitError, NewerSchemaError
from tests.unit.bundle.strategies import FINGERPRINT, FINGERPRINT_ID, bundles, coverages
from tests.unit.bundle.test_bundle import bundle, entry, withdraw

Document = dict[str, Any]


@settings(max_examples=200)
@given(bundles())
def test_round_trip(drawn: Bundle) -> None:
    """A bundle comes back from its document as it was, spares and inline bytes included."""
    payload = to_payload(drawn)
    read = from_payload(payload)
    assert drawn == read
    assert payload == to_payload(read)
    assert complete(drawn) == from_payload(to_payload(complete(drawn)))


@given(coverages())
def test_coverage_round_trip(drawn: Any) -> None:
    """Contributions carry coverage in the same form."""
    assert drawn == coverage_from_json(json.loads(json.dumps(coverage_json(drawn))))


def test_document_names_what_it_is() -> None:
    """People and tools read the document without this package."""
    document = canonical.loads(to_payload(bundle(entry("inductor"), generation=3, parent="ab" * 32)))
    assert 1 == document["schema"] == document["min_reader"]
    assert (
        document["namespace"],
        document["fingerprint"],
        document["fingerprint_id"],
    ) == ("local", FINGERPRINT, FINGERPRINT_ID)
    assert (document["generation"], document["parent"]) == (3, "ab" * 32)
    assert {"kind", "key", "raw", "stored", "accepted", "contribution", "producer"} == set(
        document["artifacts"][0]
    )


def test_form_is_canonical() -> None:
    """What is signed is canonical JSON."""
    payload = to_payload(bundle(entry("inductor"), cold={"first_call_s": 80}))
    assert payload == canonical.dumps(json.loads(payload))
    assert b'"cold":{"first_call_s":80.0}' in payload


def _of_a_later_release() -> bytes:
    document = canonical.loads(to_payload(bundle(entry("inductor"))))
    document |= {"schema": SCHEMA + 1, "signed_by": "them"}
    document["artifacts"][0]["speed"] = 1
    return canonical.dumps(document)


def test_names_of_later_releases_are_ignored() -> None:
    """A later release may add to a document as long as it says that we may read it."""
    found = from_payload(_of_a_later_release())
    assert found == replace(bundle(entry("inductor")), schema=SCHEMA + 1)


def test_what_a_later_release_added_is_never_dropped() -> None:
    """Such a document cannot be written again, also not after a merge: its unknown names would be gone."""
    found = from_payload(_of_a_later_release())

    for changed in (found, merge(found, bundle(entry("autotune"))), merge(bundle(entry("autotune")), found)):
        with pytest.raises(NewerSchemaError, match="upgrade cachekit"):
            to_payload(changed)


def test_newer_document_is_not_corrupt() -> None:
    """A document for newer readers is named as such, whatever else it holds."""
    with pytest.raises(NewerSchemaError, match="schema 2"):
        from_payload(canonical.dumps({"schema": 3, "min_reader": 2, "artifacts": "something new"}))


def test_fingerprint_must_have_its_id() -> None:
    """A document cannot claim another pipeline's id."""
    document = canonical.loads(to_payload(bundle()))
    document["fingerprint"]["toolchain"]["torch"] = "2.14.0"
    with pytest.raises(CorruptError, match="fingerprint"):
        from_payload(canonical.dumps(document))


def test_inline_bytes_must_be_the_named_ones() -> None:
    """Inlined bytes are checked against digest and size like those in a store."""
    data = b"x" * 10
    member = replace(entry("autotune"), inline=data)
    with pytest.raises(CorruptError, match="not those it names"):
        from_payload(to_payload(bundle(member)))


def test_withdrawn_artifact_in_a_document_is_not_an_entry() -> None:
    """A document that lists an artifact beside its tombstone is read as if it did not."""
    bad = entry("inductor")
    document = canonical.loads(to_payload(bundle(bad)))
    document["tombstones"] = canonical.loads(to_payload(withdraw(bad)))["tombstones"]
    assert from_payload(canonical.dumps(document)).entries == ()


def _set(place: str, value: Any) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        *path, last = place.split(".")
        target: Any = document
        for name in path:
            target = target[int(name)] if name.isdigit() else target[name]
        target[last] = value

    return change


HOSTILE = {
    "key": ("artifacts.0.key", "../../x"),
    "kind": ("artifacts.0.kind", "pgo"),
    "kind type": ("artifacts.0.kind", 1),
    "digest": ("artifacts.0.raw", {"sha256": "x", "bytes": 1}),
    "digest case": ("artifacts.0.stored", {"sha256": "A" * 64, "bytes": 1}),
    "negative size": ("artifacts.0.raw", {"sha256": "0" * 64, "bytes": -1}),
    "true as size": ("artifacts.0.raw", {"sha256": "0" * 64, "bytes": True}),
    "float as size": ("artifacts.0.raw", {"sha256": "0" * 64, "bytes": 1.0}),
    "huge size": ("artifacts.0.raw", {"sha256": "0" * 64, "bytes": 2**60}),
    "huge time": ("artifacts.0.accepted", 2**70),
    "requires": ("artifacts.0.requires", [["b", "1"], ["a", "1"]]),
    "requires shape": ("artifacts.0.requires", [["a"]]),
    "requires type": ("artifacts.0.requires", [["a", 1]]),
    "requires text": ("artifacts.0.requires", "ab"),
    "partner": ("artifacts.0.partners", ["../x"]),
    "partner type": ("artifacts.0.partners", [1]),
    "inline": ("artifacts.0.inline", "???"),
    "inline type": ("artifacts.0.inline", 5),
    "long producer": ("artifacts.0.producer", "p" * 1000),
    "entry type": ("artifacts", [1]),
    "entries type": ("artifacts", {}),
    "spare": ("spare", None),
    "namespace": ("namespace", None),
    "generation": ("generation", -1),
    "parent": ("parent", 1),
    "fingerprint": ("fingerprint", []),
    "fingerprint id": ("fingerprint_id", "../x"),
    "tombstone": ("tombstones", [{"raw_digest": "x", "reason": ""}]),
    "tombstone reason": ("tombstones", [{"raw_digest": "0" * 64}]),
    "producers": ("producers", []),
    "cold": ("cold", {"first_call_s": "fast"}),
    "cold negative": ("cold", {"first_call_s": -1}),
    "coverage": ("coverage", []),
    "unit": ("coverage.units", [{"dynamic": 1, "signature": "", "needs": []}]),
    "unit needs": ("coverage.units", [{"dynamic": True, "signature": "", "needs": ["inductor:x"]}]),
    "unit order": (
        "coverage.units",
        [{"dynamic": True, "signature": "", "needs": ["kernel:" + n * 64 for n in "10"]}],
    ),
    "unit range": (
        "coverage.units",
        [{"dynamic": True, "signature": "", "needs": [], "ranges": [["s0", True, 1]]}],
    ),
    "unit seconds": ("coverage.units", [{"dynamic": True, "signature": "", "needs": [], "seconds": True}]),
    "shape": ("coverage.shapes", [{"shape": "big", "units": []}]),
    "shape units": ("coverage.shapes", [{"shape": "1x1x1", "units": ["x"]}]),
    "schema": ("schema", 0),
    "reader": ("min_reader", "1"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_field_is_refused(name: str) -> None:
    """Every field is checked for type, pattern and range before it is believed."""
    place, value = HOSTILE[name]
    document = canonical.loads(to_payload(bundle(entry("inductor"))))
    _set(place, value)(document)
    with pytest.raises(CorruptError):
        from_payload(canonical.dumps(document))


@pytest.mark.parametrize(
    "name", ["namespace", "fingerprint", "artifacts", "spare", "coverage", "tombstones", "schema"]
)
def test_missing_field_is_named(name: str) -> None:
    """A document that lacks a part says which."""
    document = canonical.loads(to_payload(bundle()))
    del document[name]
    with pytest.raises(CorruptError, match=name):
        from_payload(canonical.dumps(document))


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"1", b'"x"', b"\xff"])
def test_what_is_no_document_is_corrupt(text: bytes) -> None:
    """Other JSON, and what is not JSON, is refused."""
    with pytest.raises(CorruptError):
        from_payload(text)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_document_bytes=100),
        Limits(max_artifacts=1),
        Limits(max_key_bytes=10),
        Limits(max_artifact_bytes=1),
        Limits(max_inline_total_bytes=10),
    ],
)
def test_limits_hold(limits: Limits) -> None:
    """Each limit refuses a document just above it."""
    first, second = entry("autotune"), entry("inductor")
    data = b"z" * 20
    members = [replace(first, inline=data, stored_size=20, stored_digest=_sha256(data)), second]
    whole = bundle(*members)
    assert whole == from_payload(to_payload(whole))
    with pytest.raises(LimitError):
        from_payload(to_payload(whole), limits)


def _sha256(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def test_facts_without_json_form_are_refused_when_written() -> None:
    """The publisher learns that its facts cannot be written."""
    with pytest.raises(ConfigurationError, match="producers"):
        to_payload(bundle(producers={"torch": object()}))


@settings(max_examples=200)
@given(st.data())
def test_any_change_gives_a_bundle_or_our_error(data: st.DataObject) -> None:
    """No foreign exception leaves the reader, whatever value stands anywhere in the document."""
    document = copy.deepcopy(_template())
    target: Any = document
    while True:
        names = sorted(target) if isinstance(target, dict) else list(range(len(target)))
        name = data.draw(st.sampled_from(names))
        inner = target[name]
        if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
            break
        target = inner
    target[name] = data.draw(_junk)
    try:
        read = replace(from_payload(canonical.dumps(document)), schema=SCHEMA)
    except CachekitError:
        return
    assert read == from_payload(to_payload(read))


_junk: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=70), st.just([]), st.just({}), st.just([[]]), st.just([None, 1]), st.just({"sha256": 1}),
)  # fmt: skip


def _template() -> Document:
    from cachekit.bundle import Coverage, Shape, ShapeRow, Unit

    member = replace(
        entry("aot_autograd", partners=[("f" + "a" * 51, "x")]), requires=(("arch", "x86_64"),), epoch=1
    )
    tuned = replace(entry("autotune"), inline=b"z", stored_size=1, stored_digest=_sha256(b"z"))
    unit = Unit(True, "{}", "s0 > 1", (("s0", 2, None),), (member.identity.id,), 1.5)
    coverage = Coverage((unit,), (ShapeRow(Shape.of(1, 2, 3, frames=4), (unit.id,)),))
    gone = withdraw(entry("inductor", content=b"gone")).tombstones
    whole = bundle(
        member,
        tuned,
        coverage=coverage,
        tombstones=gone,
        producers={"torch": "2.13"},
        cold={"first_call_s": 1.0},
    )
    return dict(canonical.loads(to_payload(whole)))
