"""torch's Mega-cache wire format (torch 2.9 to 2.15, encoding version 1), read and written without torch.

    4 bytes   CRC-32, big endian, over everything behind it
    u64       encoding version = 1
    blocks    until the end: str type, u64 count, count times (str key, bytes content)

with ``bytes`` = u64 length and the bytes, ``str`` = ``bytes`` holding base64 of the UTF-8 text, all big endian.

torch appends a block per type at every save and, when it loads, keeps only the last block of each type. So
`decode` reads all blocks and `encode` writes one per type, in fixed order with sorted keys: the same set of
artifacts gives the same bytes. torch does not check lengths (a wrong one makes it loop without end) nor keys
(they become paths); `decode` checks both, so nothing reaches torch but what `encode` wrote.

Requirements of the host are not in this format: `decode` returns artifacts without any.
"""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cachekit.bundle.artifact import TORCH_KINDS, Artifact, guards_of
from cachekit.bundle.limits import DEFAULT, Limits
from cachekit.errors import ConfigurationError, CorruptError, LimitError

ENCODING_VERSION = 1

# Job-scoped (pgo) and process-scoped (precompile) state: the last writer wins in torch, so neither can be merged.
DROPPED_TYPES = ("pgo", "precompile")

_CHECKSUM = 4
_MAX_TYPE_BYTES = 64
# A type name and a count, or a key and a content, take two length fields at least.
_MIN_RECORD = 16


@dataclass(frozen=True)
class Report:
    """What `decode_report` found: the artifacts, and how many of each other type or duplicate it left out."""

    artifacts: list[Artifact]
    dropped: Mapping[str, int]
    duplicates: int


def decode(data: bytes | bytearray | memoryview, limits: Limits = DEFAULT) -> list[Artifact]:
    """Read every block of a bundle that torch or `encode` wrote.

    ``pgo`` and ``precompile`` are left out. Of several artifacts with one kind, key and guards one is returned: the
    last of autotune, which is what torch would find on disk (coordinate descent records its better result after the
    first one), and the first of others, which are alternatives. Order is that of the bytes.

    Raises:
        CorruptError: checksum, structure, type or key is wrong, or an artifact says nothing about its guards.
        LimitError: it holds more than `limits` allow.
    """
    return decode_report(data, limits).artifacts


def decode_report(data: bytes | bytearray | memoryview, limits: Limits = DEFAULT) -> Report:
    """Do what `decode` does and also tell what was left out.

    Raises:
        CorruptError: see `decode`.
        LimitError: see `decode`.
    """
    reader = _Reader(data, limits)
    found: dict[tuple[str, str, str], Artifact] = {}
    dropped: Counter[str] = Counter()
    duplicates = 0
    while not reader.finished:
        kind = reader.text(_MAX_TYPE_BYTES, "type name")
        count = reader.count()
        if kind in DROPPED_TYPES:
            reader.skip(count)
            dropped[kind] += count
            continue
        if kind not in TORCH_KINDS:
            raise CorruptError(f"unknown artifact type {kind!r}")
        for _ in range(count):
            key = reader.text(limits.max_key_bytes, "key")
            artifact = _artifact(kind, key, reader.content(), limits)
            slot = (kind, key, artifact.guards)
            duplicates += slot in found
            if kind == "autotune" or slot not in found:
                found[slot] = artifact
    return Report(list(found.values()), dropped, duplicates)


def encode(artifacts: Iterable[Artifact]) -> bytes:
    """Write artifacts as torch reads them: one block per type, sorted, each content copied once.

    torch can use one artifact per key and guards. Where several were given, the one that requires most of the
    host is written (it was made for this kind of host), and among equals the one with the smallest sha256.

    Raises:
        ConfigurationError: an artifact is not of a kind torch knows.
    """
    chosen = _choose(artifacts)
    pieces = [ENCODING_VERSION.to_bytes(8, "big")]
    for kind in TORCH_KINDS:
        members = sorted(slot for slot in chosen if slot[0] == kind)
        if not members:
            continue
        pieces += [*_text(kind), len(members).to_bytes(8, "big")]
        for slot in members:
            data = chosen[slot].data
            pieces += [*_text(slot[1]), len(data).to_bytes(8, "big"), data]
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return b"".join([checksum.to_bytes(_CHECKSUM, "big"), *pieces])


def _artifact(kind: str, key: str, data: bytes, limits: Limits) -> Artifact:
    return Artifact(kind, key, data, guards_of(kind, data, limits))


def _choose(artifacts: Iterable[Artifact]) -> dict[tuple[str, str, str], Artifact]:
    chosen: dict[tuple[str, str, str], Artifact] = {}
    for artifact in artifacts:
        if artifact.kind not in TORCH_KINDS:
            raise ConfigurationError(f"{artifact.kind} artifacts do not belong into a Mega-cache")
        slot = (artifact.kind, artifact.key, artifact.guards)
        other = chosen.get(slot)
        if other is None or (other != artifact and _preference(artifact) < _preference(other)):
            chosen[slot] = artifact
    return chosen


def _preference(artifact: Artifact) -> tuple[int, object, str]:
    return -len(artifact.requires), artifact.requires, artifact.digest


def _text(text: str) -> tuple[bytes, bytes]:
    payload = base64.b64encode(text.encode("utf-8"))
    return len(payload).to_bytes(8, "big"), payload


class _Reader:
    """A cursor over the bytes that never moves past their end; contents are copied once, nothing else is."""

    def __init__(self, data: bytes | bytearray | memoryview, limits: Limits) -> None:
        self._view = memoryview(data).cast("B")
        self._limits = limits
        self._records = 0
        if len(self._view) > limits.max_bytes:
            raise LimitError(f"bundle of {len(self._view)} bytes; at most {limits.max_bytes} are read")
        if len(self._view) < _CHECKSUM + 8:
            raise CorruptError(f"bundle of {len(self._view)} bytes is too short to be one")
        if zlib.crc32(self._view[_CHECKSUM:]) != int.from_bytes(self._view[:_CHECKSUM], "big"):
            raise CorruptError("checksum does not match: the bundle is damaged or cut short")
        self._at = _CHECKSUM
        version = self._u64()
        if version != ENCODING_VERSION:
            raise CorruptError(f"encoding version {version} is not known (only {ENCODING_VERSION} is)")

    @property
    def finished(self) -> bool:
        return self._at == len(self._view)

    def count(self) -> int:
        """Read how many artifacts a block holds, refusing what cannot fit into the bytes that are left."""
        count = self._u64()
        self._records += 1 + count
        if count > (len(self._view) - self._at) // _MIN_RECORD:
            raise CorruptError(f"block claims {count} artifacts, more than its bytes can hold")
        if self._records > self._limits.max_artifacts:
            raise LimitError(f"more than {self._limits.max_artifacts} artifacts")
        return count

    def text(self, limit: int, what: str) -> str:
        span = self._span(4 * (limit // 3 + 1), what)
        try:
            raw = base64.b64decode(span, validate=True)
            text = raw.decode("utf-8")
        except ValueError as exc:
            raise CorruptError(f"{what} is not base64 of UTF-8 text") from exc
        if len(raw) > limit:
            raise LimitError(f"{what} is longer than {limit} bytes")
        return text

    def content(self) -> bytes:
        return bytes(self._span(self._limits.max_artifact_bytes, "artifact"))

    def skip(self, count: int) -> None:
        for _ in range(2 * count):
            self._span(self._limits.max_artifact_bytes, "artifact")

    def _span(self, limit: int, what: str) -> memoryview:
        size = self._u64()
        if size > len(self._view) - self._at:
            raise CorruptError(f"{what} of {size} bytes reaches past the end")
        if size > limit:
            raise LimitError(f"{what} of {size} bytes; at most {limit} are read")
        start, self._at = self._at, self._at + size
        return self._view[start : self._at]

    def _u64(self) -> int:
        end = self._at + 8
        if end > len(self._view):
            raise CorruptError("a length field reaches past the end")
        value = int.from_bytes(self._view[self._at : end], "big")
        self._at = end
        return value
