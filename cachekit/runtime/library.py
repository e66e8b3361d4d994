"""The session's way to what is kept: find a bundle, publish what is new, say what is nearest.

Joins the store, the keys and the manifest. The start path reads head and bundle documents only; the manifest and
everything that writes runs on the saver's thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cachekit.bundle import Artifact, Bundle
from cachekit.errors import CachekitError
from cachekit.identity import Difference, Fingerprint, nearest
from cachekit.logs import Log
from cachekit.runtime import kernels
from cachekit.runtime.housekeeping import Ceiling
from cachekit.runtime.process import PrivateFolder
from cachekit.runtime.profile import Pending, coverage_of
from cachekit.settings import Settings

if TYPE_CHECKING:
    from cachekit.store.base import Head
    from cachekit.store.guards import Hold
    from cachekit.store.publish import Published

log = Log("cachekit")

MAX_TOLD = 6
MAX_TOLD_LENGTH = 120


class Library:
    """Bundles of one namespace in the local store."""

    def __init__(self, settings: Settings) -> None:
        from cachekit.store.local import DirectoryStore
        from cachekit.store.seen import Seen

        self._settings = settings
        self.store = DirectoryStore(settings.store_root, namespace=settings.namespace)
        self.seen = Seen(settings.seen_root, settings.namespace)
        self._heads: dict[str, Head] = {}
        self._has_bundles = False
        self._holds: dict[str, Hold] = {}
        self._ceiling = Ceiling(settings)

    def close(self) -> None:
        """Let go of the bundles that were in use: they may be evicted from now on."""
        holds, self._holds = self._holds, {}
        for hold in holds.values():
            hold.release()

    def _hold(self, fid: str) -> None:
        """Keep a bundle from being evicted until `close`; where that cannot be had, a start goes on without."""
        try:
            hold = self.store.use(fid) if fid not in self._holds else None
        except CachekitError as exc:
            log.debug("%s is used without being held: %s", fid[:12], exc)
            return
        if hold is not None:
            self._holds[fid] = hold

    def find(self, fingerprint: Fingerprint) -> Bundle | None:
        """The verified head bundle, None if there is none. Raises CachekitError if it cannot be read or trusted.

        Where nothing is kept yet, the one that an earlier schema of fingerprints kept for the same pipeline.
        """
        for known in (fingerprint, *fingerprint.earlier()):
            self._hold(known.id)
            if self.store.read_head(known.id) is None and self.seen.highest(known.id) is None:
                continue  # before the keys: without any bundle there are none
            self._has_bundles = True
            from cachekit.store.fetch import committed
            from cachekit.store.keys import trusted

            found = committed(self.store, known.id, trusted(self._settings.keys_root), seen=self.seen)
            if found is not None:
                self._heads[known.id] = found.head
                return found.bundle
        return None

    def explain(self, fingerprint: Fingerprint, bundle: Bundle | None) -> str:
        """Why nothing was hit: the nearest stored fingerprint, this one left out, and what differs."""
        subject = "the bundle got no hit" if bundle else "no bundle for this fingerprint"
        if bundle is None and self._lost_its_head(fingerprint):
            subject += " is committed: its head is missing, and the next save builds upon what is left"
        try:
            found = self._nearest(fingerprint)
        except CachekitError as exc:
            return f"{subject}; the store cannot be searched: {exc}"
        if found is None:
            return f"{subject}; no other fingerprint is stored"
        other, differences = found
        return f"{subject}; nearest is {other.id[:12]}, which differs in {told(differences)}"

    def _lost_its_head(self, fingerprint: Fingerprint) -> bool:
        """Whether documents wait for a head: it was lost, or their writer died, or is still at it."""
        try:
            return self.store.read_head(fingerprint.id) is None and bool(
                self.store.generations(fingerprint.id)
            )
        except CachekitError:
            return False  # told already, as the reason why nothing was found

    def _nearest(self, fingerprint: Fingerprint) -> tuple[Fingerprint, tuple[Difference, ...]] | None:
        others = []
        for fid in self.store.profiles():
            if fid == fingerprint.id:
                continue
            try:
                data = self.store.read_profile(fid)
                others += [] if data is None else [Fingerprint.from_json(data)]
            except CachekitError:
                log.debug("profile %s cannot be read", fid, exc_info=True)
        self._has_bundles |= bool(others)
        return nearest(fingerprint, others)

    def publish(self, fingerprint: Fingerprint, pending: Pending, folder: PrivateFolder) -> Published:
        """Publish what a session adds. Raises CachekitError; then nothing was committed."""
        from cachekit.store.keys import load_or_create, trusted
        from cachekit.store.publish import Contribution, publish

        machine_code = kernels.collect(pending.kernel_paths, folder.inductor)
        contribution = Contribution(
            fingerprint=fingerprint,
            artifacts=(*pending.artifacts, *machine_code),
            coverage=coverage_of(pending, *_kernel_identities(pending, machine_code)),
            producer=_producer(fingerprint),
            created=max(0, int(time.time() * 1000)),
        )
        root = self._settings.keys_root
        earlier = [known.id for known in fingerprint.earlier()]
        key = load_or_create(root, over_bundles=self._has_bundles)
        with self.store.publishing():  # until it is held, or it could be evicted in between
            done = publish(self.store, contribution, key, trusted(root), earlier=earlier, seen=self.seen)
            self._hold(fingerprint.id)
        if done.head is not None:
            self._heads[fingerprint.id] = done.head
        return done

    def record(self, event: str, bundle: Bundle, **data: Any) -> str | None:
        """Remember the bundle's generation, and bring the manifest up to date with it and what happened to it.

        Returns what went wrong instead of raising: a manifest can be rebuilt.
        """
        from cachekit.manifest import Manifest

        problems = []
        try:
            head = self._heads.get(bundle.fingerprint_id)
            if head is not None and head.generation == bundle.generation:
                self.seen.note(self.store, bundle.fingerprint_id, head, bundle.tombstones)
        except CachekitError as exc:
            problems.append(f"generation {bundle.generation} is not remembered: {exc}")
        try:
            manifest = Manifest(self._settings.manifest_path)
            manifest.index(bundle)
            manifest.add_event(event, bundle.fingerprint_id, {"generation": bundle.generation, **data})
        except CachekitError as exc:
            problems.append(f"manifest not updated: {exc}")
        return "; ".join(problems) or None

    def record_uses(self, fid: str, units: Iterable[str]) -> str | None:
        """Count in the manifest a start that ran these units; what went wrong instead of raising."""
        from cachekit.manifest import Manifest

        try:
            Manifest(self._settings.manifest_path).add_uses(self._settings.namespace, fid, units)
        except CachekitError as exc:
            return f"uses not counted: {exc}"
        return None

    def keep_within_limit(self, written: int) -> tuple[str, ...]:
        """Evict what is least valuable if the store became too large by ``written`` bytes; what is worth knowing."""
        return self._ceiling.after_save(written)


def told(differences: Sequence[Difference]) -> str:
    """Differences for one line of a log; ``cachekit explain`` tells all of them, whole."""
    shown = [
        text if len(text) <= MAX_TOLD_LENGTH else text[:MAX_TOLD_LENGTH] + "…"
        for text in map(str, differences)
    ]
    more = len(shown) - MAX_TOLD
    return ", ".join(shown[:MAX_TOLD]) + (f" and {more} more components" if more > 0 else "")


def _producer(fingerprint: Fingerprint) -> dict[str, Any]:
    """Facts about who made a contribution: no host, user or path."""
    toolchain = fingerprint.components.get("toolchain", {})
    return {
        name: toolchain[name] for name in ("torch", "python", "triton", "gpu", "cpu") if name in toolchain
    }


def _kernel_identities(pending: Pending, found: list[Artifact]) -> tuple[dict[str, str], list[str]]:
    """Identities of kernels by path, those of earlier saves included, and of the probe answers."""
    by_path = {a.key: a.identity.id for a in found if not a.key.endswith(kernels.PROBE_SUFFIX)}
    used = {path for _, paths in pending.units for path in paths}
    if used - by_path.keys():
        wanted = kernels.identities(used - by_path.keys())
        by_path |= wanted
    probes = kernels.probe_answers() if used else []
    return by_path, [probe.identity.id for probe in probes]
