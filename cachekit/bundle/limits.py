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
    """Upper bounds, each with its unit in the name or beside it."""

    max_bytes: int = 4 * GIB  # one whole bundle in torch's wire format
    max_artifact_bytes: int = 2 * GIB  # one artifact, raw; torch refuses larger pickles long before
    max_artifacts: int = 200_000  # a large pipeline with every shape baked has a few thousand
    max_key_bytes: int = 255  # keys become file names
    max_guards_bytes: int = 1 * MIB  # one guard expression; the longest seen are a few KiB
    max_document_bytes: int = 256 * MIB  # a bundle document; 200,000 entries take about 150 MiB
    # A document that was merged while another writer filled it can pass the planned total a little.
    max_inline_total_bytes: int = 4 * INLINE_TOTAL_BYTES
    max_units: int = 50_000
    max_shapes: int = 200_000
    max_needs: int = 20_000  # artifacts that one unit needs
    max_tombstones: int = 200_000
    max_text_bytes: int = 4 * MIB  # one signature or other free text in a document
    max_ast_nodes: int = 20_000  # in one guard expression that is evaluated


DEFAULT = Limits()
