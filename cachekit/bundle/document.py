"""The bundle document: `Bundle` as canonical JSON, and back from bytes that somebody else wrote.

Reading checks types, patterns, digests and limits of everything before a value is made of it. The signature is checked
before (``signing.py``), by whoever fetched the bytes. A document names the oldest reader that understands it: a newer
one is refused as such. One of a newer schema that we may read can be used, its unknown names ignored, but is never
written again: they would be lost.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from cachekit.bundle import canonical
from cachekit.bundle.artifact import KEY_PATTERNS, Reference, Requires, check_key, check_requires
from cachekit.bundle.bundle import SCHEMA, Bundle, Entry, Tombstone
from cachekit.bundle.coverage import Coverage, Range, Shape, ShapeRow, Unit
from cachekit.bundle.fields import DIGEST, Fields, refuse_text
from cachekit.bundle.limits import DEFAULT, Limits
from cachekit.errors import ConfigurationError, CorruptError, LimitError, NewerSchemaError

MIN_READER = 1
"""The oldest release, by its schema, that may use what is written here."""

_NEED = re.compile(rf"(?:{'|'.join(KEY_PATTERNS)}):[0-9a-f]{{64}}")

_INFINITY = (1 << 63) - 1


def to_payload(bundle: Bundle) -> bytes:
    """Return the canonical bytes of `bundle`, which are what gets signed.

    Raises:
        ConfigurationError: the fingerprint or the facts hold something that JSON cannot say.
        NewerSchemaError: it was read from a document of a newer schema.
    """
    if bundle.schema > SCHEMA:
        raise NewerSchemaError(
            f"the bundle has schema {bundle.schema}, and this release, which writes {SCHEMA}, would lose what it does "
            "not know: upgrade cachekit to add to it"
        )
    return canonical.dumps(
        {
            "schema": SCHEMA,
            "min_reader": MIN_READER,
            "namespace": bundle.namespace,
            "fingerprint": bundle.fingerprint,
            "fingerprint_id": bundle.fingerprint_id,
            "generation": bundle.generation,
            "parent": bundle.parent,
            "artifacts": [_entry_json(entry) for entry in bundle.entries],
            "spare": [_entry_json(entry) for entry in bundle.spare],
            "coverage": coverage_json(bundle.coverage),
            "tombstones": [{"raw_digest": one.raw_digest, "reason": one.reason} for one in bundle.tombstones],
            "producers": bundle.producers,
            "cold": {name: float(seconds) for name, seconds in bundle.cold.items()},
        }
    )


def from_payload(data: bytes, limits: Limits = DEFAULT) -> Bundle:
    """Read a bundle document whose signature was checked.

    Raises:
        CorruptError: it is not a bundle document, or something in it is not what its name says.
        LimitError: it holds more than `limits` allow.
        NewerSchemaError: only a newer release may read it.
    """
    if len(data) > limits.max_document_bytes:
        raise LimitError(f"document of {len(data)} bytes; at most {limits.max_document_bytes} are read")
    document = Fields(canonical.loads(data, limits), "document", limits)
    document.refuse_newer(SCHEMA)
    fingerprint, fingerprint_id = document.mapping("fingerprint"), document.digest("fingerprint_id")
    if canonical.digest(fingerprint) != fingerprint_id:
        raise CorruptError("the fingerprint does not have the id that the document gives it")
    entries = document.items("artifacts", limits.max_artifacts, _entry)
    spare = document.items("spare", limits.max_artifacts - len(entries), _entry)
    _refuse_total(entries, spare, limits)
    return Bundle(
        namespace=document.text("namespace"),
        fingerprint=fingerprint,
        fingerprint_id=fingerprint_id,
        entries=entries,
        coverage=coverage_from_json(document.value("coverage"), limits),
        tombstones=document.items("tombstones", limits.max_tombstones, _tombstone),
        producers=document.mapping("producers"),
        generation=document.integer("generation"),
        parent=document.text("parent") if document.value("parent") is not None else None,
        cold={name: _seconds(value, limits) for name, value in document.mapping("cold").items()},
        spare=spare,
        schema=document.integer("schema"),
    )


def coverage_json(coverage: Coverage) -> Mapping[str, Any]:
    """Return `coverage` as plain JSON; contributions carry it as well."""
    return {
        "units": [_unit_json(unit) for unit in coverage.units],
        "shapes": [{"shape": row.shape.label, "units": list(row.unit_ids)} for row in coverage.shapes],
    }


def coverage_from_json(value: Any, limits: Limits = DEFAULT) -> Coverage:
    """Read what `coverage_json` gave.

    Raises:
        CorruptError: it is not a coverage.
        LimitError: it holds more than `limits` allow.
    """
    fields = Fields(value, "coverage", limits)
    return Coverage(
        fields.items("units", limits.max_units, _unit), fields.items("shapes", limits.max_shapes, _row)
    )


def _refuse_total(entries: tuple[Entry, ...], spare: tuple[Entry, ...], limits: Limits) -> None:
    """Refuse entries that are too much together, though each of them is not."""
    inline = sum(len(entry.inline) for entry in (*entries, *spare) if entry.inline is not None)
    if inline > limits.max_inline_total_bytes:
        raise LimitError(
            f"{inline} bytes of artifacts inside the document; at most {limits.max_inline_total_bytes}"
        )
    total = sum(entry.raw_size for entry in entries)
    if total > limits.max_bytes:
        raise LimitError(f"artifacts of {total} bytes in all; at most {limits.max_bytes} are read")


def _entry_json(entry: Entry) -> Mapping[str, Any]:
    optional: dict[str, Any] = {
        "guards": entry.guards,
        "requires": [list(pair) for pair in entry.requires],
        "partners": list(entry.partners),
        "epoch": entry.epoch,
    }
    if entry.inline is not None:
        optional["inline"] = base64.b64encode(entry.inline).decode("ascii")
    return {
        "kind": entry.kind,
        "key": entry.key,
        "raw": {"sha256": entry.raw_digest, "bytes": entry.raw_size},
        "stored": {"sha256": entry.stored_digest, "bytes": entry.stored_size},
        "accepted": entry.accepted,
        "contribution": entry.contribution,
        "producer": entry.producer,
        **{name: value for name, value in optional.items() if value or name == "inline"},
    }


def _entry(fields: Fields) -> Entry:
    limits = fields.limits
    kind, key = fields.text("kind"), fields.text("key", limits.max_key_bytes)
    check_key(kind, key)
    raw = Fields(fields.value("raw"), "raw", limits)
    stored = Fields(fields.value("stored"), "stored", limits)
    entry = Entry(
        kind=kind,
        key=key,
        guards=fields.text("guards", limits.max_guards_bytes) if fields.has("guards") else "",
        requires=_requires(fields) if fields.has("requires") else (),
        raw_digest=raw.digest("sha256"),
        raw_size=raw.integer("bytes", limits.max_artifact_bytes),
        stored_digest=stored.digest("sha256"),
        stored_size=stored.integer("bytes", limits.max_artifact_bytes),
        inline=_inline(fields) if fields.has("inline") else None,
        accepted=fields.integer("accepted"),
        contribution=fields.text("contribution"),
        producer=fields.text("producer"),
        partners=_partners(fields) if fields.has("partners") else (),
        epoch=fields.integer("epoch") if fields.has("epoch") else 0,
    )
    if entry.inline is not None and not _is_stored(entry, entry.inline):
        raise CorruptError(f"{kind} {key}: the bytes in the document are not those it names")
    return entry


def _is_stored(entry: Entry, data: bytes) -> bool:
    return len(data) == entry.stored_size and hashlib.sha256(data).hexdigest() == entry.stored_digest


def _inline(fields: Fields) -> bytes:
    # The total of all is limited afterwards; one text cannot be longer than the document.
    text = fields.text("inline", fields.limits.max_document_bytes)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as exc:
        raise CorruptError("inline bytes are not base64") from exc


def _requires(fields: Fields) -> Requires:
    pairs = fields.array("requires", fields.limits.max_pairs)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise CorruptError("requirements are not pairs")
    result = tuple((pair[0], pair[1]) for pair in pairs)
    check_requires(result)
    for text in (text for pair in result for text in pair):
        refuse_text(text, "a requirement", fields.limits.max_note_chars)
    return result


def _partners(fields: Fields) -> tuple[str, ...]:
    texts = fields.array("partners", fields.limits.max_pairs)
    for text in texts:
        if not isinstance(text, str):
            raise CorruptError("a partner is not text")
        reference = Reference.parse(text)
        check_key("inductor", reference.key)
        refuse_text(reference.guards, "the guards of a partner", fields.limits.max_guards_bytes)
    return tuple(texts)


def _tombstone(fields: Fields) -> Tombstone:
    return Tombstone(fields.digest("raw_digest"), fields.text("reason", fields.limits.max_note_chars))


def _unit_json(unit: Unit) -> Mapping[str, Any]:
    optional = {
        "guards": unit.guards,
        "ranges": [list(one) for one in unit.ranges],
        "seconds": float(unit.seconds),
    }
    return {
        "dynamic": unit.dynamic,
        "signature": unit.signature,
        "needs": list(unit.needs),
        **{name: value for name, value in optional.items() if value},
    }


def _unit(fields: Fields) -> Unit:
    limits = fields.limits
    dynamic = fields.value("dynamic")
    needs = fields.texts("needs", limits.max_needs, _NEED)
    if not isinstance(dynamic, bool) or list(needs) != sorted(set(needs)):
        raise CorruptError("a unit is neither static nor dynamic, or its needs are not sorted")
    return Unit(
        dynamic=dynamic,
        signature=fields.text("signature", limits.max_text_bytes),
        guards=fields.text("guards", limits.max_guards_bytes) if fields.has("guards") else "",
        ranges=_ranges(fields) if fields.has("ranges") else (),
        needs=needs,
        seconds=_seconds(fields.value("seconds"), limits) if fields.has("seconds") else 0.0,
    )


def _ranges(fields: Fields) -> tuple[Range, ...]:
    return tuple(_range(one, fields.limits) for one in fields.array("ranges", fields.limits.max_pairs))


def _range(value: Any, limits: Limits) -> Range:
    match value:
        case [str(name), int(low), int(high) | (None as high)] if bool not in (type(low), type(high)):
            refuse_text(name, "a symbol", limits.max_name_chars)
            # torch writes its own infinity, the largest 64-bit number, where a size has no bound.
            if max(abs(low), abs(high or 0)) > max(_INFINITY, limits.max_integer):
                raise LimitError(f"a range of {name} reaches beyond {_INFINITY}")
            return name, low, high
    raise CorruptError("a range is not [symbol, smallest, largest]")


def _row(fields: Fields) -> ShapeRow:
    units = fields.texts("units", fields.limits.max_units, DIGEST)
    try:
        return ShapeRow(Shape.parse(fields.text("shape", fields.limits.max_note_chars)), units)
    except ConfigurationError as exc:
        raise CorruptError(f"not a shape: {exc}") from exc


def _seconds(value: Any, limits: Limits) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < limits.max_integer:
        raise CorruptError("seconds are not a positive number")
    return float(value)
