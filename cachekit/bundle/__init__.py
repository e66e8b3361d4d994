"""Bundles: what the compiler produced, as values.

Pure functions and frozen dataclasses; nothing here imports torch, opens a file or talks to a network. The
stores move what this package encodes, the runtime records and installs it. Modules that are worth their own name
(``canonical``, ``megacache``, ``scan``, ``signing``) are imported as such.
"""

from cachekit.bundle.artifact import (
    KINDS,
    TORCH_KINDS,
    Artifact,
    Difference,
    Identity,
    Reference,
    Requires,
    guards_of,
    has_cpp,
    partners_of,
    references_of,
    requires,
    unmet,
)
from cachekit.bundle.bundle import Bundle, Entry, Tombstone, complete, merge, plan_inline
from cachekit.bundle.coverage import Coverage, Scalar, Shape, ShapeRow, Unit, accepts
from cachekit.bundle.document import from_payload, to_payload
from cachekit.bundle.limits import DEFAULT, Limits

__all__ = [
    "DEFAULT",
    "KINDS",
    "TORCH_KINDS",
    "Artifact",
    "Bundle",
    "Coverage",
    "Difference",
    "Entry",
    "Identity",
    "Limits",
    "Reference",
    "Requires",
    "Scalar",
    "Shape",
    "ShapeRow",
    "Tombstone",
    "Unit",
    "accepts",
    "complete",
    "from_payload",
    "guards_of",
    "has_cpp",
    "merge",
    "partners_of",
    "plan_inline",
    "references_of",
    "requires",
    "to_payload",
    "unmet",
]
