"""The contribution statement: one node's signature under what it adds.

Artifacts in a bundle name the statement they came with, so that a reader who trusts producers, not the merger, can
check each artifact's digest against what its producer signed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cachekit.bundle import canonical
from cachekit.bundle.bundle import Entry
from cachekit.bundle.coverage import Coverage
from cachekit.bundle.document import coverage_json

if TYPE_CHECKING:
    from cachekit.bundle.signing import SigningKey

SCHEMA = 1


@dataclass(frozen=True)
class Statement:
    """What is contributed to one fingerprint of one namespace; ``created`` is in milliseconds since the epoch."""

    namespace: str
    fingerprint_id: str
    created: int
    producer: Mapping[str, Any]
    entries: tuple[Entry, ...]
    coverage: Coverage

    def to_payload(self) -> bytes:
        """Canonical JSON."""
        return canonical.dumps(
            {
                "schema": SCHEMA,
                "min_reader": SCHEMA,
                "namespace": self.namespace,
                "fingerprint_id": self.fingerprint_id,
                "created": self.created,
                "producer": self.producer,
                "artifacts": [
                    {
                        "id": entry.identity.id,
                        "raw": {"sha256": entry.raw_digest, "bytes": entry.raw_size},
                        "stored": {"sha256": entry.stored_digest, "bytes": entry.stored_size},
                    }
                    for entry in self.entries
                ],
                "coverage": coverage_json(self.coverage),
            }
        )

    def sign(self, key: SigningKey) -> bytes:
        """The statement in its envelope."""
        from cachekit.bundle import signing

        return signing.sign(self.to_payload(), key, payload_type=signing.CONTRIBUTION_TYPE)
