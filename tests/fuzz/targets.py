"""What is fuzzed: per decoder one function of bytes that fails on any broken promise.

The promises are the same everywhere: only the named errors, and what is accepted comes back the same when it is
written and read again. Bytes that a checksum, a digest or a signature would stop are sealed first, as somebody with
the right key could, so that the layers behind are reached.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cachekit.bundle import (
    Bundle,
    Shape,
    accepts,
    canonical,
    complete,
    from_payload,
    guards,
    guards_of,
    has_cpp,
    megacache,
    merge,
    partners_of,
    references_of,
    scan,
    signing,
    to_payload,
)
from cachekit.bundle.artifact import Reference
from cachekit.bundle.bundle import SCHEMA
from cachekit.bundle.document import coverage_from_json
from cachekit.errors import CachekitError, ConfigurationError, CorruptError, NewerSchemaError, TrustError
from cachekit.identity.fingerprint import Fingerprint
from cachekit.identity.toolchain import Toolchain
from cachekit.store import holdings, inspection
from cachekit.store.base import Head
from cachekit.store.fetch import fetch, read_artifacts
from cachekit.store.memory import MemoryStore
from cachekit.store.packing import pack, unpack
from tests.fuzz import samples

Result = TypeVar("Result")
_SYMBOLS = {"s0": 64, "s1": 77, "s77": 3}
_DAMAGE = (CorruptError, TrustError, NewerSchemaError)


class Refused(Exception):  # noqa: N818  (an outcome, not an error)
    """The decoder said no with an error that it may raise: nothing more to check."""


def attempt(
    allowed: type[CachekitError] | tuple[type[CachekitError], ...], call: Callable[[], Result]
) -> Result:
    """Return what `call` does; raises `Refused` for an allowed error and lets any other through."""
    try:
        return call()
    except allowed as exc:
        # People read the message in a terminal and in logs; it must not be a megabyte.
        assert len(str(exc)) < 5000, f"an error message of {len(str(exc))} characters"  # noqa: PT017
        raise Refused from exc


def wire(data: bytes) -> None:
    """torch's wire format behind a right checksum, and as it came."""
    _refused_quietly(lambda: attempt(CorruptError, lambda: megacache.decode(data)))
    found = attempt(CorruptError, lambda: megacache.decode(samples.sealed(data)))
    again = megacache.encode(found)
    assert sorted(megacache.decode(again), key=_slot) == sorted(found, key=_slot)
    assert megacache.encode(megacache.decode(again)) == again


def _slot(artifact: Any) -> tuple[str, str, str]:
    return artifact.kind, artifact.key, artifact.guards


def document(data: bytes) -> None:
    """A bundle document whose signature was right."""
    check_bundle(attempt(_DAMAGE, lambda: from_payload(data)))


def check_bundle(found: Bundle) -> None:
    """What was read can be written, merged and completed, and is read back the same."""
    if found.schema > SCHEMA:
        return  # never written by this release
    written = to_payload(found)
    again = from_payload(written)
    assert again == found
    assert to_payload(again) == written
    assert merge(found, found) == found
    assert from_payload(to_payload(complete(found))) == complete(found)


def envelope(data: bytes) -> None:
    """A DSSE envelope; only what the key signed may come out."""
    found = attempt((CorruptError, TrustError), lambda: signing.verify(data, samples.TRUSTED))
    assert found.keyid == samples.KEY.keyid
    assert found.payload == b'{"min_reader":1}'


def canonical_json(data: bytes) -> None:
    """Strict JSON: what is read has a canonical form, which reads the same."""
    value = attempt(CorruptError, lambda: canonical.loads(data))
    written = canonical.dumps(value)
    assert canonical.dumps(canonical.loads(written)) == written


def fingerprint(data: bytes) -> None:
    """A stored fingerprint, as bytes and as text."""
    found = attempt((CorruptError, NewerSchemaError), lambda: Fingerprint.from_json(data))
    assert Fingerprint.from_json(found.to_json()) == found
    assert found.diff(Fingerprint.of({})) is not None
    text = _as_text(data)
    assert Fingerprint.from_json(text) == found
    toolchain = _refused_quietly(
        lambda: attempt((CorruptError, NewerSchemaError), lambda: Toolchain.from_json(text))
    )
    assert toolchain is None or Toolchain.from_json(toolchain.to_json()) == toolchain


def head(data: bytes) -> None:
    """``head.json``, and the same bytes as a file name."""
    named = Head.from_filename(data.decode("utf-8", "surrogateescape"))
    for found in (named, attempt((CorruptError, NewerSchemaError), lambda: Head.from_bytes(data))):
        if found is not None:
            assert Head.from_bytes(found.to_bytes()) == found
            assert Head.from_filename(found.filename) == found
            assert len(found.filename) < 128


def coverage(data: bytes) -> None:
    """One unit and one call, as a document and an engine would give them."""
    value = attempt(CorruptError, lambda: canonical.loads(data))
    if not isinstance(value, dict):
        raise Refused
    call = value.get("call")
    covered = attempt(CorruptError, lambda: coverage_from_json({"units": [value.get("unit")], "shapes": []}))
    for unit in covered.units:
        text = call if isinstance(call, str) else json.dumps(call)
        assert accepts(unit, text) in (True, False)
        if not unit.dynamic:
            assert accepts(unit, unit.signature)


def _as_text(data: bytes) -> str:
    """The bytes as text, lone surrogates included; what is no UTF-8 becomes text all the same."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def guard(data: bytes) -> None:
    """A guard expression."""
    text = _as_text(data)
    proven = guards.holds(text, _SYMBOLS)
    assert proven in (True, False)
    assert guards.equals(text, 64, _SYMBOLS) in (True, False)
    if proven and text:
        # `eval` of what was proven agrees: the subset means what Python means.
        assert eval(text.strip(), {"__builtins__": {}}, {**_SYMBOLS, **_PRINTED})


_PRINTED: Mapping[str, Callable[..., object]] = {
    "Eq": lambda a, b: a == b,
    "Ne": lambda a, b: a != b,
    "Lt": lambda a, b: a < b,
    "Le": lambda a, b: a <= b,
    "Gt": lambda a, b: a > b,
    "Ge": lambda a, b: a >= b,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "Abs": abs,
    "Max": lambda *a: max(a),
    "Min": lambda *a: min(a),
    "And": lambda *a: all(a),
    "Or": lambda *a: any(a),
    "Not": lambda a: not a,
}


def pickled(data: bytes) -> None:
    """An artifact's pickle: what is searched in it, what the scan says, and what Python's own unpickler would do."""
    assert has_cpp(data) in (True, False)
    for key in partners_of(data):
        assert Reference.parse(key).key == key
    for kind in ("inductor", "aot_autograd"):
        _refused_quietly(lambda kind=kind: attempt(CorruptError, lambda: guards_of(kind, data)))
    references = _refused_quietly(lambda: attempt(CorruptError, lambda: references_of(data)))
    for reference in references or ():
        assert Reference.parse(str(reference)) == reference
    attempt((CorruptError, TrustError), lambda: scan.check("inductor", data))
    assert _imported(data) <= scan.scan(data)


class _Inert:
    """Stands for every global: can be called, made, changed and hashed, and does nothing."""

    def __new__(cls, *args: object, **names: object) -> Any:
        return object.__new__(cls)

    def __init__(self, *args: object, **names: object) -> None: ...
    def __setstate__(self, state: object) -> None: ...
    def __setitem__(self, key: object, value: object) -> None: ...
    def append(self, value: object) -> None: ...
    def extend(self, values: object) -> None: ...
    def add(self, value: object) -> None: ...


def _imported(data: bytes) -> set[str]:
    """What the real unpickler asks for."""
    asked: set[str] = set()

    class Watching(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            asked.add(f"{module}.{name}")
            return _Inert

    try:
        Watching(io.BytesIO(data)).load()
    except RecursionError:
        raise
    except Exception:  # noqa: BLE001  (refusing is fine; what was asked for until then counts)
        pass
    return asked


def frame(data: bytes) -> None:
    """A compressed blob, under the size that it claims itself: anybody could have signed that."""
    import zstandard

    try:
        claimed = zstandard.frame_content_size(data)
    except zstandard.ZstdError:
        claimed = 0
    if not 0 <= claimed <= 1 << 24:
        claimed = 1000
    found = attempt(CorruptError, lambda: unpack(data, claimed))
    assert len(found) == claimed
    assert unpack(pack(found), claimed) == found


def shape(data: bytes) -> None:
    """A shape's label, as people type it and documents carry it."""
    text = _as_text(data)
    found = attempt(ConfigurationError, lambda: Shape.parse(text))
    assert Shape.parse(found.label) == found
    assert hash(found) == hash(Shape.parse(found.label))


def store(data: bytes) -> None:
    """A whole store whose document holds these bytes, signed by the trusted key and named by the head."""
    memory = MemoryStore(samples.NAMESPACE)
    for artifact in samples.artifacts():
        memory.write_blob(pack(artifact.data))
    _statement(memory, data)
    signed = signing.sign(data, samples.KEY)
    assert all(len(digest) == 64 for digest in holdings.named(signed) | holdings.named(data))
    digest = memory.write_generation(samples.FINGERPRINT_ID, 1, signed)
    memory.move_head(samples.FINGERPRINT_ID, None, Head(1, digest))
    found = attempt(_DAMAGE, lambda: fetch(memory, samples.FINGERPRINT_ID, samples.TRUSTED))
    assert found is not None
    check_bundle(found)
    loaded = read_artifacts(memory, found, lambda entry: True)
    assert len(loaded.artifacts) + len(loaded.problems) == len(found.entries)
    for artifact in loaded.artifacts:
        _refused_quietly(
            lambda one=artifact: attempt((CorruptError, TrustError), lambda: scan.check(one.kind, one.data))
        )
    for unit in found.coverage.units:
        assert accepts(unit, samples.signature(2, 64)) in (True, False)


def _statement(memory: MemoryStore, data: bytes) -> None:
    """What a producer signed about an artifact; it vouches for nothing that it does not name."""
    signed = signing.sign(data, samples.KEY, payload_type=signing.CONTRIBUTION_TYPE)
    digest, one = memory.write_contribution(signed), samples.entries()[:1]
    check = inspection.check_statement
    _refused_quietly(
        lambda: attempt(_DAMAGE, lambda: check(memory, digest, samples.KEY.keyid, one, samples.TRUSTED))
    )


def _refused_quietly(call: Callable[[], Result]) -> Result | None:
    try:
        return call()
    except Refused:
        return None


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "canonical": canonical_json,
    "coverage": coverage,
    "document": document,
    "envelope": envelope,
    "fingerprint": fingerprint,
    "frame": frame,
    "guards": guard,
    "head": head,
    "pickle": pickled,
    "shape": shape,
    "store": store,
    "wire": wire,
}


def run(name: str, data: bytes) -> bool:
    """Give `data` to a target; True where the bytes were accepted. Raises whatever breaks a promise."""
    try:
        TARGETS[name](data)
    except Refused:
        return False
    return True
