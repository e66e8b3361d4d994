from __future__ import annotations

import base64
import hashlib
import itertools
import time
import tracemalloc
import zlib
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachekit.bundle import Artifact, Limits
from cachekit.bundle.megacache import decode, decode_report, encode
from cachekit.errors import CachekitError, ConfigurationError, CorruptError, LimitError
from tests.unit.bundle.strategies import distinct, torch_artifacts, torch_data, torch_key

artifact_sets = st.lists(torch_artifacts(), max_size=8).map(distinct)


def u64(number: int) -> bytes:
    """Write a length or count as torch does."""
    return number.to_bytes(8, "big")


def text(value: str) -> bytes:
    """Write text as torch does."""
    payload = base64.b64encode(value.encode())
    return u64(len(payload)) + payload


def block(kind: str, items: Iterable[tuple[str, bytes]], count: int | None = None) -> bytes:
    """Write one block, with a wrong `count` where one is given."""
    pairs = list(items)
    body = b"".join(text(key) + u64(len(data)) + data for key, data in pairs)
    return text(kind) + u64(len(pairs) if count is None else count) + body


def sealed(*blocks: bytes, version: int = 1) -> bytes:
    """Put the header and a right checksum before `blocks`."""
    body = u64(version) + b"".join(blocks)
    return zlib.crc32(body).to_bytes(4, "big") + body


KEY = torch_key("inductor", 1)
DATA = torch_data("inductor", "", b"x")
GOOD = sealed(block("inductor", [(KEY, DATA)]), block("autotune", [(torch_key("autotune", 1), b"{}")]))


@given(artifact_sets)
def test_round_trip(artifacts: list[Artifact]) -> None:
    """What is encoded is decoded, guards included."""
    assert {one.identity: one for one in artifacts} == {
        one.identity: one for one in decode(encode(artifacts))
    }


@given(artifact_sets, st.randoms())
def test_same_set_same_bytes(artifacts: list[Artifact], random: object) -> None:
    """Order and repetition of the input do not show in the output."""
    shuffled = [*artifacts, *artifacts[:2]]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert encode(artifacts) == encode(shuffled)
    assert encode(artifacts) == encode(decode(encode(artifacts)))


@given(artifact_sets, artifact_sets)
def test_all_blocks_of_a_type_are_read(first: list[Artifact], second: list[Artifact]) -> None:
    """torch keeps only the last block of a type; nothing of the earlier ones is lost here."""
    blocks = [block(one.kind, [(one.key, one.data)]) for one in [*first, *second]]
    expected = {one.identity for one in [*first, *second]}
    assert expected == {one.identity for one in decode(sealed(*blocks))}


def test_layout_is_torchs() -> None:
    """Types come in fixed order, one block each, keys sorted inside."""
    second, first = sorted([torch_key("inductor", 1), torch_key("inductor", 2)], reverse=True)
    aot, tune = torch_key("aot_autograd", 1), torch_key("autotune", 1)
    data = torch_data("aot_autograd", "", b"y")
    artifacts = [
        Artifact("autotune", tune, b"{}"),
        Artifact("inductor", second, DATA),
        Artifact("aot_autograd", aot, data),
        Artifact("inductor", first, DATA),
    ]
    expected = sealed(
        block("inductor", [(first, DATA), (second, DATA)]),
        block("aot_autograd", [(aot, data)]),
        block("autotune", [(tune, b"{}")]),
    )
    assert expected == encode(artifacts)


def test_nothing_is_a_bundle_too() -> None:
    """An empty set encodes to a bundle that decodes to nothing."""
    assert sealed() == encode([])
    assert decode(sealed()) == []
    assert decode(sealed(block("inductor", []))) == []


def test_job_and_process_state_is_dropped_and_counted() -> None:
    """pgo and precompile entries are left out, whatever their keys, and the report says so."""
    report = decode_report(
        sealed(
            block("pgo", [("job:0:", b"p"), ("job:0:", b"q")]), block("precompile", [("x", b"")]), GOOD[12:]
        )
    )
    assert [one.kind for one in report.artifacts] == ["inductor", "autotune"]
    assert dict(report.dropped) == {"pgo": 2, "precompile": 1}


def test_first_graph_and_last_autotune_result_are_kept() -> None:
    """Coordinate descent records a better configuration under the same key after the first one."""
    tune = torch_key("autotune", 1)
    other = torch_data("inductor", "", b"other")
    report = decode_report(
        sealed(
            block("inductor", [(KEY, DATA), (KEY, other)]),
            block(
                "autotune", [(tune, b'{"found_by_coordesc": false}'), (tune, b'{"found_by_coordesc": true}')]
            ),
        )
    )
    assert [one.data for one in report.artifacts] == [DATA, b'{"found_by_coordesc": true}']
    assert report.duplicates == 2


def test_alternatives_under_other_guards_are_kept() -> None:
    """One key may hold several graphs, told apart by their guards."""
    guarded = torch_data("inductor", "2 <= L['t0']", b"x")
    assert [one.guards for one in decode(sealed(block("inductor", [(KEY, DATA), (KEY, guarded)])))] == [
        "",
        "2 <= L['t0']",
    ]


def test_most_specific_artifact_is_written_where_torch_can_use_one() -> None:
    """Of artifacts that differ in requirements only, the one made for this kind of host is written."""
    plain = Artifact("inductor", KEY, torch_data("inductor", "", b"plain"))
    mine = Artifact(
        "inductor", KEY, torch_data("inductor", "", b"avx512"), requires=(("vector_isa", "avx512"),)
    )
    for pair in itertools.permutations([plain, mine]):
        assert [mine.data] == [one.data for one in decode(encode(pair))]


@pytest.mark.parametrize("kind", ["program", "kernel"])
def test_kinds_that_torch_does_not_know_are_refused(kind: str) -> None:
    """One unknown type makes torch reject a whole bundle."""
    with pytest.raises(ConfigurationError):
        encode([Artifact(kind, torch_key(kind, 1), b"")])


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_truncation_anywhere_is_corrupt(length: int) -> None:
    """A bundle that was cut short, with or without a checksum that fits, is refused."""
    with pytest.raises(CorruptError):
        decode(GOOD[:length])
    if length > 12:
        body = GOOD[4:length]
        cut = zlib.crc32(body).to_bytes(4, "big") + body
        whole_block = length == 12 + len(block("inductor", [(KEY, DATA)]))
        if whole_block:
            assert len(decode(cut)) == 1
        else:
            with pytest.raises(CorruptError):
                decode(cut)


@pytest.mark.parametrize("position", range(0, len(GOOD), 7))
def test_flipped_bit_is_corrupt(position: int) -> None:
    """The checksum covers every byte."""
    damaged = bytearray(GOOD)
    damaged[position] ^= 0x10
    with pytest.raises(CorruptError):
        decode(damaged)


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(sealed(version=2), id="version"),
        pytest.param(sealed(text("inductor") + u64(2**64 - 1)), id="absurd count"),
        pytest.param(sealed(block("inductor", [(KEY, DATA)], count=2)), id="count too high"),
        pytest.param(sealed(block("inductor", [(KEY, DATA)], count=0)), id="count too low"),
        pytest.param(
            sealed(text("inductor") + u64(1) + text(KEY) + u64(2**63) + DATA), id="content too long"
        ),
        pytest.param(
            sealed(text("inductor") + u64(1) + text(KEY) + u64(len(DATA) + 1) + DATA), id="one too long"
        ),
        pytest.param(sealed(text("pgo") + u64(2**40)), id="absurd count of a dropped type"),
        pytest.param(sealed(u64(2**64 - 1) + b"aW5k"), id="type name too long"),
        pytest.param(sealed(block("surprise", [("x", b"")])), id="unknown type"),
        pytest.param(sealed(block("", [])), id="no type"),
        pytest.param(sealed(block("inductor", [("../../x", DATA)])), id="traversal"),
        pytest.param(
            sealed(block("autotune", [("../" + torch_key("autotune", 1), b"{}")])), id="autotune traversal"
        ),
        pytest.param(
            sealed(block("inductor", [(torch_key("aot_autograd", 1), DATA)])), id="key of another kind"
        ),
        pytest.param(sealed(block("inductor", [(KEY, b"no pickle")])), id="no guards"),
        pytest.param(sealed(block("inductor", [("k" * 100_000, DATA)])), id="long key"),
        pytest.param(sealed(u64(4) + b"!!!!" + u64(0)), id="type is not base64"),
        pytest.param(sealed(u64(4) + base64.b64encode(b"\xff\xff") + u64(0)), id="type is not text"),
        pytest.param(sealed(b"\0" * 7), id="half a length"),
        pytest.param(sealed(b"\0" * 8 * 100_001 * 2), id="empty type names"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\0" * 12, id="zeros"),
    ],
)
def test_hostile_bundle_is_refused_at_once(hostile: bytes) -> None:
    """Whatever the fields claim, decoding ends in our error, quickly and without allocating what they claim."""
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(CorruptError):
            decode(hostile)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 2
    assert peak < 4_000_000 + 2 * len(hostile)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_bytes=len(GOOD) - 1),
        Limits(max_artifacts=1),
        Limits(max_artifact_bytes=len(DATA) - 1),
        Limits(max_key_bytes=51),
    ],
)
def test_limits_hold(limits: Limits) -> None:
    """Each limit refuses a bundle just above it."""
    with pytest.raises(LimitError):
        decode(GOOD, limits)


def test_endless_empty_blocks_are_limited() -> None:
    """Blocks without artifacts count as well, or a large bundle of them would take minutes."""
    with pytest.raises(LimitError):
        decode(sealed(block("inductor", []) * 2000), Limits(max_artifacts=1000))


def test_long_guards_are_limited() -> None:
    """A guard expression longer than any real one is refused."""
    with pytest.raises(LimitError):
        decode(
            sealed(block("inductor", [(KEY, torch_data("inductor", "x" * 101, b""))])),
            Limits(max_guards_bytes=100),
        )


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_give_artifacts_or_our_error(data: bytes, seal: bool) -> None:
    """No foreign exception leaves the decoder, with a right checksum or without."""
    try:
        decode(sealed(data) if seal else data)
    except CachekitError:
        return


@given(st.data())
def test_any_damage_gives_artifacts_or_our_error(data: st.DataObject) -> None:
    """Bytes changed inside a bundle whose checksum was made to fit again are handled like any others."""
    body = bytearray(GOOD[12:])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        artifacts = decode(sealed(bytes(body)))
    except CachekitError:
        return
    assert artifacts == decode(encode(artifacts)) or len(artifacts) > 1


def test_memory_stays_near_the_size_of_the_bundle() -> None:
    """Contents are copied once on the way in and once on the way out."""
    size = 4_000_000
    artifacts = [
        Artifact("inductor", torch_key("inductor", n), torch_data("inductor", "", bytes(size)))
        for n in range(5)
    ]
    total = sum(len(one.data) for one in artifacts)
    tracemalloc.start()
    try:
        data = encode(artifacts)
        _, encoded = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        decoded = decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert encoded < 1.1 * total
    assert peak - before < 1.1 * total
    assert len(decoded) == 5


def test_views_are_decoded_like_bytes() -> None:
    """A bundle need not be copied out of the buffer it was read into."""
    assert decode(GOOD) == decode(memoryview(bytearray(GOOD)))


def test_decoding_a_recorded_bundle_gives_what_torch_recorded(
    recorded: dict[str, tuple[bytes, dict[str, object]]],
) -> None:
    """Every torch minor's own bundles, two blocks per type included, are read in full with guards and digests."""
    for data, fact in recorded.values():
        assert hashlib.sha256(data).hexdigest() == fact["raw_sha256"]
        blocks = fact["blocks"]
        assert isinstance(blocks, list)
        expected = {
            (kind, item["key"], item["guards"] or "", item["sha256"])
            for kind, items in blocks
            for item in items
        }
        found = decode(data)
        assert expected == {(one.kind, one.key, one.guards, one.digest) for one in found}
        assert len(encode(found)) == fact["canonical_size"]


def test_encoding_a_recorded_bundle_gives_what_torch_would_write(
    recorded: dict[str, tuple[bytes, dict[str, object]]],
) -> None:
    """With one block per type in our order, torch's own serializer writes the same bytes."""
    for name in ("single", "double", "dynamic"):
        data, fact = recorded[name]
        assert hashlib.sha256(encode(decode(data))).hexdigest() == fact["canonical_sha256"]


def test_recorded_partners_are_found(recorded: dict[str, tuple[bytes, dict[str, object]]]) -> None:
    """The inductor artifact that each aot_autograd artifact looks up is named with its guards, in every minor."""
    from cachekit.bundle import Reference, references_of

    for data, fact in recorded.values():
        blocks = fact["blocks"]
        assert isinstance(blocks, list)
        expected = {
            (item["key"], item["guards"] or ""): Reference(item["partner"], item["partner_guards"] or "")
            for kind, items in blocks
            for item in items
            if kind == "aot_autograd"
        }
        found = [one for one in decode(data) if one.kind == "aot_autograd"]
        assert expected
        assert expected.keys() == {(one.key, one.guards) for one in found}
        for one in found:
            assert {expected[one.key, one.guards]} == references_of(one.data)
