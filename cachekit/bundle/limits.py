"""How much of anything is accepted from bytes that somebody else wrote.

Every decoder in this package takes a `Limits`; a value over its limit is a ``LimitError``. The defaults leave
an order of magnitude above the largest bundles measured (hundreds of megabytes, thousands of artifacts).
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# Part of the format, the same everywhere: artifacts of this size or less travel inside the document ...
INLINE_BYTES = 4 * KIB
# ... until these many bytes of them are in it, so that a document stays quick to fetch and verify.
INLINE_TOTAL_BYTES = 4 * MIB


@dataclass(frozen=True)
class Limits:
    """Upper bounds, each with its unit in the name or beside it, and with its reason."""

    # A bundle in torch's wire format, or all that a document lists, unpacked, which may be in memory at once.
    max_bytes: int = 4 * GIB
    max_artifact_bytes: int = 2 * GIB  # one artifact, raw; torch refuses larger pickles long before
    max_artifacts: int = 200_000  # a large pipeline with every shape baked has a few thousand
    max_key_bytes: int = 255  # keys become file names
    max_guards_bytes: int = 1 * MIB  # one guard expression; the longest seen are a few KiB
    # In one expression that is evaluated; the tree that Python's parser makes of so many takes some ten megabytes.
    max_guard_tokens: int = 20_000
    max_document_bytes: int = 256 * MIB  # a bundle document; 200,000 entries take about 150 MiB
    # A document that was merged while another writer filled it can pass the planned total a little.
    max_inline_total_bytes: int = 4 * INLINE_TOTAL_BYTES
    max_units: int = 50_000  # a thousand shapes of a model of fifty kinds of block
    max_shapes: int = 200_000  # rows; each names the units of one shape
    max_needs: int = 20_000  # artifacts that one unit needs
    max_tombstones: int = 200_000  # one for every artifact
    max_text_bytes: int = 4 * MIB  # the signature of one call; those of large graphs take some 100 KiB
    max_name_chars: int = 256  # a namespace, a producer and the like; they are shown in one line
    max_note_chars: int = 4096  # why something was withdrawn, or the label of a shape with its variant
    max_pairs: int = 256  # requirements, partners or ranges of one thing; real ones have a dozen
    max_integer: int = (1 << 53) - 1  # the largest that every JSON reader keeps exact; fits SQLite's 64 bits
    # Levels of JSON; documents and signatures have ten. Whoever walks one recurses that deep.
    max_depth: int = 64
    max_signatures: int = 16  # one is normal; a few happen while keys are rotated
    max_signature_bytes: int = 1 * KIB  # ed25519 takes 64
    max_opcodes: int = 1_000_000  # in one pickle and all nested in it; a real one of 150 KB takes 1,600
    # Tuples in a tuple, each counted as often as it is reached: whoever hashes one walks all of them.
    max_tuples: int = 1_000_000
    # Python hashes a tuple on C's stack, a frame per level; real ones have ten levels.
    max_tuple_depth: int = 500


DEFAULT = Limits()
