"""Who a pipeline is: fingerprint, toolchain, plan.

``fingerprint(pipe, plan, toolchain)`` joins what three sibling modules gather. Importing this package loads
neither torch nor diffusers, so the server may read fingerprints.
"""

from __future__ import annotations

from cachekit.identity.fingerprint import ABSENT, SCHEMA, Difference, Fingerprint, FingerprintId, nearest
from cachekit.identity.plan import Plan

__all__ = ["ABSENT", "SCHEMA", "Difference", "Fingerprint", "FingerprintId", "Plan", "nearest"]
