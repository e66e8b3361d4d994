"""The session's way to what is kept: find a bundle, publish what is new, say what is nearest.

Joins the store, the keys and the manifest. The start path reads head and bundle documents only; the manifest and
everything that writes runs on the saver's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from cachekit.bundle import Artifact, Bundle
from cachekit.errors import CachekitError
from cachekit.identity import Difference, Fingerprint, nearest
from cachekit.runtime import kernels
from cachekit.runtime.process import PrivateFolder
from cachekit.runtime.profile import Pending, coverage_of
from cachekit.settings import Settings

log = logging.getLogger(__name__)


class Library:
    """Bundles of one namespace in the local store."""

    def __init__(self, settings: Settings) -> None:
        from cachekit.store.local import DirectoryStore

        self._settings = settings
        self.store = DirectoryStore(settings.store_root, namespace=settings.namespace)

    def find(self, fingerprint: Fingerprint) -> Bundle | None:
        """The verified head bundle, or None if there is none. Raises CachekitError where it cannot be trusted or read."""
        if self.store.read_head(fingerprint.id) is None:
            return None  # before the keys: a machine that never saved anything has none
        from cachekit.store import keys
        from cachekit.store.publish import fetch

        return fetch(self.store, fingerprint.id, keys.trusted(self._settings.keys_root))

    def nearest(self, fingerprint: Fingerprint) -> tuple[str, tuple[Difference, ...]] | None:
        """The stored fingerprint that shares most with this one, itself left out: (id, differences)."""
        others = []
        for fid in self.store.profiles():
            data = self.store.read_profile(fid) if fid != fingerprint.id else None
            if data is not None:
                others.append(Fingerprint.from_json(data))
        found = nearest(fingerprint, others)
        return None if found is None else (found[0].id, found[1])

    def publish(
        self, fingerprint: Fingerprint, pending: Pending, folder: PrivateFolder, producer: Mapping[str, Any]
    ) -> Any:
        """Publish what a session adds; returns the store's ``Published``. Raises CachekitError."""
        from cachekit.store import keys
        from cachekit.store.publish import Contribution, publish

        machine_code = kernels.collect(pending.kernel_paths, folder.inductor)
        artifacts: tuple[Artifact, ...] = (*pending.artifacts, *machine_code)
        contribution = Contribution(
            fingerprint=fingerprint,
            artifacts=artifacts,
            coverage=coverage_of(pending, *_kernel_identities(pending, machine_code)),
            producer=producer,
            created=int(time.time() * 1000),
        )
        root = self._settings.keys_root
        return publish(self.store, contribution, keys.load_or_create(root), keys.trusted(root))

    def index(self, bundle: Bundle, event: str, data: Mapping[str, Any]) -> str | None:
        """Bring the manifest up to date; returns what went wrong, because a manifest can be rebuilt."""
        from cachekit.manifest import Manifest

        try:
            manifest = Manifest(self._settings.manifest_path)
            manifest.index(bundle)
            manifest.add_event(event, bundle.fingerprint_id, data)
        except CachekitError as exc:
            return f"manifest not updated: {exc}"
        return None


def _kernel_identities(pending: Pending, found: list[Artifact]) -> tuple[dict[str, str], list[str]]:
    """Identities of kernels by path, those of earlier saves included, and of the probe answers."""
    by_path = {a.key: a.identity.id for a in found if not a.key.endswith(kernels.PROBE_SUFFIX)}
    used = {path for _, paths in pending.units for path in paths}
    if used - by_path.keys():
        wanted = kernels.identities(used - by_path.keys())
        by_path |= wanted
    probes = kernels.probe_answers() if used else []
    return by_path, [probe.identity.id for probe in probes]
