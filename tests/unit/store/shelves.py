"""A directory store with several bundles in it, for tests that collect; tells what is there as a reader sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cachekit.bundle import Artifact, Bundle, Coverage, Shape, ShapeRow, Unit, canonical, complete
from cachekit.bundle.signing import PublicKey, SigningKey, generate
from cachekit.identity.fingerprint import Fingerprint
from cachekit.store.collect import Collected, Collector, Uses
from cachekit.store.fetch import fetch, read_artifacts
from cachekit.store.holdings import size_of
from cachekit.store.local import DirectoryStore
from cachekit.store.publish import Contribution, publish
from cachekit.store.seen import Seen
from tests.unit.store.world import inductor

NOW = 1_800_000_000.0
KB = 1000


def fingerprint(name: str) -> Fingerprint:
    """A fingerprint, the same for the same name."""
    return Fingerprint.of({"toolchain": {"torch": "2.13.0"}, "pipeline": {"family": name}, "plan": {}})


def unit(name: str, *needs: Artifact, seconds: float = 10.0) -> Coverage:
    """A static unit with a shape of its own."""
    made = Unit(
        dynamic=False,
        signature=canonical.dumps({"unit": name}).decode(),
        needs=tuple(sorted(artifact.identity.id for artifact in needs)),
        seconds=seconds,
    )
    side = 64 * (1 + sum(name.encode()))
    return Coverage((made,), (ShapeRow(Shape.of(side, side, 1), (made.id,)),))


def graph(name: str, *, size: int = 100 * KB) -> Artifact:
    """An inductor artifact whose bytes do not compress; larger than what travels in a document."""
    return inductor(name, size=size)


@dataclass
class Shelves:
    """A store below ``root`` with one key."""

    root: Path
    key: SigningKey = field(default_factory=generate)

    @property
    def trusted(self) -> dict[str, PublicKey]:
        """Only the key itself."""
        return {self.key.keyid: self.key.public}

    @property
    def store(self) -> DirectoryStore:
        """Another handle."""
        return DirectoryStore(self.root / "store")

    def seen(self, namespace: str) -> Seen:
        """The memory of a namespace."""
        return Seen(self.root / "seen", namespace)

    @property
    def size(self) -> int:
        """Bytes in the store."""
        return size_of(self.root / "store")

    def save(
        self,
        pipeline: str,
        *names: str,
        size: int = 100 * KB,
        seconds: float = 10.0,
        namespace: str = "local",
    ) -> Bundle:
        """Publish a unit with one artifact for each name."""
        made = [graph(f"{pipeline} {name}", size=size) for name in names]
        parts = [unit(name, artifact, seconds=seconds) for name, artifact in zip(names, made, strict=True)]
        coverage = Coverage(
            tuple(u for part in parts for u in part.units),
            tuple(row for part in parts for row in part.shapes),
        )
        return self.publish(pipeline, made, coverage, namespace=namespace)

    def publish(
        self,
        pipeline: str,
        made: list[Artifact],
        coverage: Coverage | None = None,
        *,
        namespace: str = "local",
    ) -> Bundle:
        """Publish anything."""
        contribution = Contribution(fingerprint(pipeline), tuple(made), coverage or Coverage(), {})
        store = DirectoryStore(self.root / "store", namespace)
        done = publish(store, contribution, self.key, self.trusted, seen=self.seen(namespace))
        assert done.head is not None
        self.seen(namespace).note(store, fingerprint(pipeline).id, done.head)
        return done.bundle

    def fetch(self, pipeline: str, namespace: str = "local") -> Bundle | None:
        """What a reader gets, whole and with every artifact readable, or the test fails."""
        store = DirectoryStore(self.root / "store", namespace)
        bundle = fetch(store, fingerprint(pipeline).id, self.trusted, seen=self.seen(namespace))
        if bundle is not None:
            assert complete(bundle) == bundle
            loaded = read_artifacts(store, bundle, lambda entry: True)
            assert loaded.problems == ()
        return bundle

    def units(self, pipeline: str) -> list[str]:
        """The names of the units that a reader finds."""
        bundle = self.fetch(pipeline)
        units = bundle.coverage.units if bundle is not None else ()
        return sorted(canonical.loads(one.signature.encode())["unit"] for one in units)

    def collector(
        self, limit: int | None, *, target: int | None = None, uses: Uses | None = None, now: float = NOW
    ) -> Collector:
        """What collects here."""
        return Collector(
            self.root / "store",
            self.trusted,
            limit=limit,
            target=target,
            uses=uses,
            seen=self.seen,
            now=now,
        )

    def collect(
        self,
        limit: int | None,
        *,
        target: int | None = None,
        uses: Uses | None = None,
        now: float = NOW,
        wait_s: float = 0.0,
    ) -> Collected:
        """Collect."""
        collector = self.collector(limit, target=target, uses=uses, now=now)
        return collector.collect(lambda: self.key, wait_s=wait_s)

    def blobs(self) -> set[str]:
        """Names of the blobs that are there."""
        return {path.name for path in self.root.glob("store/*/blobs/sha256/*/*") if path.name[0] != "."}

    def folder(self, pipeline: str) -> Path:
        """Where a profile lies."""
        return self.root / "store" / "local" / "profiles" / fingerprint(pipeline).id

    def documents(self, pipeline: str) -> list[int]:
        """The generations whose documents are there."""
        return [head.generation for head in self.store.generations(fingerprint(pipeline).id)]
