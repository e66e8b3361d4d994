"""The local manifest: an SQLite index of what the store holds, and a diary of what sessions did.

The store is the truth; the manifest answers questions about it quickly and is rebuilt from it when it is lost.
SQLAlchemy takes 0.4 s to import, so nothing a start waits for touches this package.
"""

from cachekit.manifest.manifest import Manifest
from cachekit.manifest.records import (
    ArtifactRecord,
    BundleRecord,
    Event,
    FingerprintRecord,
    Rebuilt,
    ShapeRecord,
    UnitRecord,
    UseRecord,
)

__all__ = [
    "ArtifactRecord",
    "BundleRecord",
    "Event",
    "FingerprintRecord",
    "Manifest",
    "Rebuilt",
    "ShapeRecord",
    "UnitRecord",
    "UseRecord",
]
