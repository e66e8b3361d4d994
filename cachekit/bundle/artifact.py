"""One thing the compiler produced, its identity, and what can be read from it without running it.

An artifact is identified by kind, key, guards and what it requires of the host; two compiles of one identity
give different bytes, so the bytes are not part of it. Keys become file names inside torch's cache folder, which
is why each must match the pattern of its kind before anything else looks at it.

The ``*_of`` functions look into torch's pickles without unpickling: they search for the one opcode they need.
This module never imports torch and does no IO.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from cachekit.bundle import canonical
from cachekit.bundle.limits import DEFAULT, Limits
from cachekit.bundle.opcodes import Operation, operations
from cachekit.errors import ConfigurationError, CorruptError, LimitError

TORCH_KINDS = ("inductor", "aot_autograd", "autotune")
KINDS = (*TORCH_KINDS, "program", "kernel")

KEY_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "inductor": re.compile(r"f[a-z2-7]{51}"),
    "aot_autograd": re.compile(r"a[a-z2-7]{51}"),
    "autotune": re.compile(r"[a-z0-9]{2}/[0-9a-f]{64}\.best_config"),
    "program": re.compile(r"[0-9a-f]{64}"),
    # A compiled kernel, or the answer of one ISA probe.
    "kernel": re.compile(r"[a-z2-7]{2}/c[a-z2-7]{51}\.main\.so|[0-9a-f]{64}\.isa"),
}

Requires = tuple[tuple[str, str], ...]
"""What the host must have, as sorted (name, value) pairs; empty means anything the fingerprint allows."""


class Difference(NamedTuple):
    """One requirement that the host does not meet; `found` is None where the host does not say."""

    name: str
    wanted: str
    found: str | None


class Identity(NamedTuple):
    """What an artifact is, without its bytes."""

    kind: str
    key: str
    guards: str
    requires: Requires

    @property
    def id(self) -> str:
        """``<kind>:<64 hex>``, stable across releases; documents and the manifest refer to artifacts by it."""
        return f"{self.kind}:{canonical.digest([self.kind, self.key, self.guards, self.requires])}"


class Reference(NamedTuple):
    """The inductor artifact that an aot_autograd artifact looks up: its key and exact guards."""

    key: str
    guards: str

    def __str__(self) -> str:
        """Return the key, followed by a space and the guards where there are any."""
        return f"{self.key} {self.guards}" if self.guards else self.key

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read what ``str`` wrote."""
        key, _, guards = text.partition(" ")
        return cls(key, guards)


@dataclass(frozen=True, slots=True)
class Artifact:
    """One artifact with its bytes.

    Raises:
        CorruptError: the kind is unknown, the key does not match its pattern, or `requires` is not sorted.
    """

    kind: str
    key: str
    data: bytes = field(repr=False)
    guards: str = ""
    requires: Requires = ()

    def __post_init__(self) -> None:
        check_key(self.kind, self.key)
        if self.requires:
            check_requires(self.requires)

    @property
    def identity(self) -> Identity:
        """Everything but the bytes."""
        return Identity(self.kind, self.key, self.guards, self.requires)

    @property
    def digest(self) -> str:
        """sha256 of the raw bytes, 64 hex digits; computed on every access."""
        return hashlib.sha256(self.data).hexdigest()


def check_key(kind: str, key: str) -> None:
    """Refuse a key that does not look like its kind, and so could name a file anywhere else.

    Raises:
        CorruptError: the kind is unknown or the key does not match.
    """
    pattern = KEY_PATTERNS.get(kind)
    if pattern is None:
        raise CorruptError(f"unknown artifact kind {kind[:40]!r}")
    if pattern.fullmatch(key) is None:
        raise CorruptError(f"{key[:120]!r} is not a key of kind {kind}")


def requires(mapping: Mapping[str, str]) -> Requires:
    """Return `mapping` as sorted pairs.

    Raises:
        ConfigurationError: a name or value is not text.
    """
    for pair in mapping.items():
        if not all(isinstance(text, str) for text in pair):
            raise ConfigurationError(f"requirement {pair!r} is not text")
    return tuple(sorted(mapping.items()))


def check_requires(pairs: Requires) -> None:
    """Refuse requirements that are not text, sorted and unique.

    Raises:
        CorruptError: they are not.
    """
    names = [pair[0] for pair in pairs]
    if any(not isinstance(text, str) for pair in pairs for text in pair) or names != sorted(set(names)):
        raise CorruptError(f"requirements are not sorted pairs of text: {pairs!r}"[:200])


def unmet(wanted: Requires, host: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return what `host` does not fulfil of `wanted`; a name that the host lacks counts as unmet."""
    return tuple(Difference(name, value, host.get(name)) for name, value in wanted if host.get(name) != value)


_MEMOIZE = b"\x94"
_INDUCTOR_KEY = re.compile(rb"\x8c\x34(f[a-z2-7]{51})")
# A pickle embedded in another one repeats the attribute names as memo references, which a search cannot see.
_NESTED = b"\x8c\x0fCompiledFxGraph"
_GENERATED_CPP = (
    b"async_compile.cpp",
    b"CppWrapperCodeCache",
    b"cpp_wrapper_src",
    b"CppCodeCache",
    b'extern "C"',
)


def guards_of(kind: str, data: bytes, limits: Limits = DEFAULT) -> str:
    """Return the guard expression of an inductor or aot_autograd artifact, "" where it has none.

    The pickle is searched, not executed: one pass of ``bytes.find``, and a walk over all opcodes only where the
    value was pickled as a memo reference.

    Raises:
        CorruptError: the pickle says nothing readable about its guards.
        LimitError: they are longer than `limits` allow, or the pickle is.
    """
    if kind not in ("inductor", "aot_autograd"):
        return ""
    found = _attribute(data, b"guards_expr", limits, whole=kind == "aot_autograd" and _NESTED in data)
    if not found:
        raise CorruptError(f"{kind} artifact without guards_expr")
    if len(found[-1]) > limits.max_guards_bytes:
        raise LimitError(f"guards of {len(found[-1])} characters; at most {limits.max_guards_bytes} are read")
    return found[-1]


def references_of(data: bytes, limits: Limits = DEFAULT) -> frozenset[Reference]:
    """Return the inductor artifacts that an aot_autograd artifact looks up: keys and exact guards.

    Raises:
        CorruptError: the pickle cannot be walked.
        LimitError: it looks up more than `limits` allow.
    """
    found = _references(data, limits)
    if len(found) > limits.max_pairs:
        raise LimitError(f"{len(found)} artifacts are looked up by one; at most {limits.max_pairs}")
    return found


def _references(data: bytes, limits: Limits) -> frozenset[Reference]:
    keys = partners_of(data)
    if not keys:
        return frozenset()
    guards = set(_attribute(data, b"fx_graph_guard_expr", limits, whole=len(keys) > 1))
    if len(keys) == 1 or guards <= {""}:
        return frozenset(Reference(key, text) for key in keys for text in guards or {""})
    return frozenset(_paired(data, limits))


def partners_of(data: bytes) -> frozenset[str]:
    """Return the inductor keys that an aot_autograd artifact names, forward and backward."""
    return frozenset(match.decode("ascii") for match in _INDUCTOR_KEY.findall(data))


def has_cpp(data: bytes) -> bool:
    """Whether the source in an inductor artifact contains C++, and so belongs to one kind of CPU.

    The configuration that torch pickles beside the source mentions C++ in every artifact; only the source counts.
    An artifact whose source cannot be found is taken to contain C++.
    """
    source = _text_after(data, b"\x8c\x0bsource_code" + _MEMOIZE)
    return any(mark in (data if source is None else source) for mark in _GENERATED_CPP)


def _text_after(data: bytes, marker: bytes) -> bytes | None:
    """Return the text operand of the opcode that follows the only `marker`; None where there is no such thing."""
    at = data.find(marker)
    if at < 0 or data.find(marker, at + 1) >= 0:
        return None
    at += len(marker)
    code = data[at : at + 1]
    width = {b"\x8c": 1, b"X": 4, b"\x8d": 8}.get(code)
    if width is None:
        return b"" if code == b"N" else None
    start = at + 1 + width
    length = int.from_bytes(data[at + 1 : start], "little")
    return data[start : start + length] if start + length <= len(data) else None


def _attribute(data: bytes, name: bytes, limits: Limits, *, whole: bool) -> list[str]:
    """Return the text values of every attribute `name`, in order; `whole` skips the quick search."""
    if not whole:
        text = _text_after(data, b"\x8c" + bytes([len(name)]) + name + _MEMOIZE)
        if text is not None:
            return [_decoded(text)]
    return [_decoded(value or b"") for key, value in pairwise(_texts(data, limits)) if key == name]


def _paired(data: bytes, limits: Limits) -> Iterator[Reference]:
    """Pair each inductor key with the guards that are pickled after it."""
    key: str | None = None
    for name, value in pairwise(_texts(data, limits)):
        if name == b"fx_graph_cache_info" and value is not None:
            key = _decoded(value)
            check_key("inductor", key)
        elif name == b"fx_graph_guard_expr" and key is not None:
            yield Reference(key, _decoded(value or b""))
            key = None


def _decoded(text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise CorruptError("a key or guards are not text") from exc


def _texts(data: bytes, limits: Limits) -> list[bytes | None]:
    """Return all values the pickle pushes, in order: text as itself, None and anything else as None.

    Opcodes that only collect (memo, tuples, marks) are left out, so that a name stands right before its value.
    """
    result: list[bytes | None] = []
    memo: dict[int, bytes | None] = {}
    last: bytes | None = None
    for name, operand in operations(data, limits):
        if name is Operation.STORE:
            memo[int.from_bytes(operand, "little") if operand else len(memo)] = last
            continue
        last = None
        if name is Operation.TEXT:
            last = operand
        elif name is Operation.RECALL:
            last = memo.get(int.from_bytes(operand, "little"))
        if name is not Operation.COLLECT:
            result.append(last)
    return result
