"""Processes that save, read and look after one store at once, forked from one that has imported everything.

Run as a script with a folder and numbers, by ``test_many_processes``; it prints what it found as JSON. No torch: the
artifacts are made up, which is what lets sixteen processes save ten times on a small machine.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

from cachekit.bundle import Artifact, Bundle, Coverage, complete
from cachekit.bundle.signing import PublicKey, SigningKey
from cachekit.cli.app import app
from cachekit.manifest import Manifest
from cachekit.settings import Settings
from cachekit.store import keys
from cachekit.store.collect import Collected, Collector
from cachekit.store.fetch import fetch, read_artifacts
from cachekit.store.local import DirectoryStore
from cachekit.store.publish import Contribution, Published, publish
from cachekit.store.seen import Seen
from tests.unit.store.world import FINGERPRINT, autotune, covering, key_of, noise

FORK = multiprocessing.get_context("fork")
LIMIT = 150_000
"""Bytes of a store that about a dozen of these compiles fill."""


def inductor(name: str, by: str = "") -> Artifact:
    """An inductor artifact of some size that passes every check; ``by`` makes another compile of the same."""
    data = pickle.dumps({"guards_expr": "", "code": noise(f"{name} {by}", 6000)})
    return Artifact("inductor", key_of("inductor", name), data)


def aot(name: str) -> Artifact:
    """The artifact that looks up the inductor artifact of the same name."""
    data = {"fx_graph_cache_info": key_of("inductor", name), "fx_graph_guard_expr": "", "guards_expr": ""}
    return Artifact("aot_autograd", key_of("aot_autograd", name), pickle.dumps(data))


def adds(writer: int, turn: int) -> tuple[tuple[Artifact, ...], Coverage]:
    """What one writer adds in one round: a compile of its own, and one that everybody makes, each a bit differently."""
    name = f"{writer} {turn}"
    own = (inductor(name), aot(name), autotune(name))
    contested = inductor(f"everybody {turn}", by=str(writer))
    return (*own, contested), covering(f"{writer + 1}x{turn + 1}x1", *own, contested)


class Place:
    """The store, its memory, the key and the trusted keys, as each process opens them for itself."""

    def __init__(self, root: Path) -> None:
        self.settings = Settings(dir=root)
        self.store = DirectoryStore(self.settings.store_root)
        self.seen = Seen(self.settings.seen_root, "local")
        self.key: SigningKey = keys.load_or_create(self.settings.keys_root)
        self.trusted: dict[str, PublicKey] = keys.trusted(self.settings.keys_root)

    def bundle(self) -> Bundle | None:
        """What a reader gets."""
        return fetch(self.store, FINGERPRINT.id, self.trusted, seen=self.seen)

    def save(self, artifacts: tuple[Artifact, ...], coverage: Coverage) -> Published:
        """Publish, remember and index, as a session does."""
        contribution = Contribution(FINGERPRINT, artifacts, coverage, {"torch": "2.13.0"})
        done = publish(self.store, contribution, self.key, self.trusted, seen=self.seen)
        if done.head is not None:
            self.seen.note(self.store, FINGERPRINT.id, done.head, done.bundle.tombstones)
        return done


def write(root: Path, writer: int, turns: int, together: Barrier) -> None:
    """Save once a round, all writers at the same moment."""
    for turn in range(turns):
        artifacts, coverage = adds(writer, turn)
        together.wait()
        published = Place(root).save(artifacts, coverage)
        mine = {artifact.identity for artifact in artifacts}
        assert mine <= {entry.identity for entry in published.bundle.entries}


def read(root: Path, done: Event, counts: Any) -> None:
    """Look at the bundle again and again: it is always whole, and never loses anything."""
    place = Place(root)
    before = None
    while not done.is_set():
        bundle = place.bundle()
        if bundle is None:
            assert before is None
            continue
        check_whole(place.store, bundle)
        if before is not None:
            check_grown(before, bundle)
        before = bundle
        counts.value += 1
        done.wait(0.02)  # leave the writers some of the machine


def index(root: Path, writer: int, turns: int) -> None:
    """Save without waiting for anybody, and bring the manifest up to date each time."""
    for turn in range(turns):
        place = Place(root)
        bundle = place.save(*adds(writer, turn)).bundle
        with Manifest(place.settings.manifest_path) as manifest:
            manifest.index(bundle)
            manifest.add_event("saved", FINGERPRINT.id, {"generation": bundle.generation})
            assert manifest.events(limit=5)


def use(root: Path, done: Event, counts: Any) -> None:
    """Start again and again as a session does: hold the bundle, read all of it, ask the manifest."""
    place = Place(root)
    while not done.is_set():
        hold = place.store.use(FINGERPRINT.id)
        bundle = place.bundle()
        if bundle is not None and hold is not None:
            check_whole(place.store, bundle)
            counts.value += 1
        if hold is not None:
            hold.release()
        with Manifest(place.settings.manifest_path) as manifest:
            manifest.shapes(FINGERPRINT.id)
        done.wait(0.1)  # what is in use is not evicted


def collect(root: Path, done: Event, counts: Any) -> None:
    """Evict again and again what is over a limit that is reached soon."""
    place = Place(root)
    while not done.is_set():
        counts.value += len(collect_once(place).evicted)
        done.wait(0.05)


def collect_once(place: Place) -> Collected:
    """What is over the limit goes, and the manifest is told."""
    collected = Collector(
        place.settings.store_root,
        place.trusted,
        limit=LIMIT,
        target=LIMIT * 3 // 4,
        seen=lambda namespace: Seen(place.settings.seen_root, namespace),
    ).collect(lambda: place.key)
    with Manifest(place.settings.manifest_path) as manifest:
        for bundle in collected.bundles:
            manifest.index(bundle)
    assert not collected.problems, collected.problems
    return collected


def ask(root: Path, done: Event, counts: Any, verb: str) -> None:
    """Run a verb of the command line again and again; it finds nothing wrong."""
    while not done.is_set():
        code, told = run_verb(root, verb)
        assert code == 0, f"{verb} exited with {code}: {told}"
        counts.value += 1
        done.wait(0.05)


def run_verb(root: Path, verb: str) -> tuple[int, str]:
    """The exit code and output of ``cachekit <verb>``."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            app([verb, "--dir", str(root), "--json"], prog_name="cachekit")
        except SystemExit as exit_:
            return int(exit_.code or 0), told.getvalue()
    return 0, told.getvalue()


def check_whole(store: DirectoryStore, bundle: Bundle) -> None:
    """Everything that the bundle names is there and is what it says."""
    assert complete(bundle) == bundle
    loaded = read_artifacts(store, bundle, lambda entry: True)
    assert not loaded.problems, loaded.problems
    assert len(loaded.artifacts) == len(bundle.entries)
    present = {entry.identity.id for entry in bundle.entries}
    units = {unit.id: unit for unit in bundle.coverage.units}
    assert all(set(unit.needs) <= present for unit in units.values())
    assert all(set(row.unit_ids) <= units.keys() for row in bundle.coverage.shapes)


def check_grown(before: Bundle, after: Bundle) -> None:
    """A later look sees a later generation, or the same one, with everything that was there."""
    assert after.generation >= before.generation, (before.generation, after.generation)
    assert {e.identity: e.raw_digest for e in before.entries}.items() <= {
        e.identity: e.raw_digest for e in after.entries
    }.items()
    assert set(before.coverage.shapes) <= set(after.coverage.shapes)


def run(jobs: dict[str, tuple[Callable[..., None], tuple[Any, ...]]], failures: Any) -> list[Any]:
    """Start a process for each job; a job that fails leaves its traceback in ``failures``."""

    def guarded(name: str, job: Callable[..., None], args: tuple[Any, ...]) -> None:
        try:
            job(*args)
        except BaseException:
            failures.put(f"{name}: {traceback.format_exc()}")
            raise

    started = [FORK.Process(target=guarded, args=(name, job, args)) for name, (job, args) in jobs.items()]
    for process in started:
        process.start()
    return started


def compete(root: Path, writers: int, turns: int, readers: int) -> dict[str, Any]:
    """All writers save at once, round by round, while readers read; what came of it."""
    Place(root)  # the key, before there are forks
    failures = FORK.SimpleQueue()
    together, done = FORK.Barrier(writers, timeout=120), FORK.Event()
    looks = [FORK.Value("i", 0) for _ in range(readers)]
    watching = run({f"reader {n}": (read, (root, done, looks[n])) for n in range(readers)}, failures)
    writing = run({f"writer {n}": (write, (root, n, turns, together)) for n in range(writers)}, failures)
    for process in writing:
        process.join()
    done.set()
    for process in watching:
        process.join()
    told = []
    while not failures.empty():
        told.append(failures.get())
    return {"failures": told, "looks": [look.value for look in looks], **compare(root, writers, turns)}


def quarrel(root: Path, writers: int, turns: int) -> dict[str, Any]:
    """Save, use, verify, rebuild and collect one store and one manifest, all at once; what came of it."""
    place = Place(root)
    with Manifest(place.settings.manifest_path):
        pass
    failures, done = FORK.SimpleQueue(), FORK.Event()
    others: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
        "use": (use, ()),
        "collect": (collect, ()),
        "verify": (ask, ("verify",)),
        "rebuild": (ask, ("rebuild",)),
    }
    counts = {name: FORK.Value("i", 0) for name in others}
    jobs = {name: (job, (root, done, counts[name], *more)) for name, (job, more) in others.items()}
    beside = run(jobs, failures)
    writing = run({f"writer {n}": (index, (root, n, turns)) for n in range(writers)}, failures)
    for process in writing:
        process.join()
    done.set()
    for process in beside:
        process.join()
    told = []
    while not failures.empty():
        told.append(failures.get())
    last = collect_once(place)
    bundle = place.bundle()
    assert bundle is not None
    check_whole(place.store, bundle)
    codes = {verb: run_verb(root, verb) for verb in ("verify", "rebuild")}
    with Manifest(place.settings.manifest_path) as manifest:
        agrees = len(manifest.artifacts(FINGERPRINT.id)) == len(bundle.entries)
        events = len(manifest.events(limit=10_000, kind="saved"))
    return {
        "failures": told,
        "done": {name: count.value for name, count in counts.items()},
        "afterwards": {verb: (code, told if code else "") for verb, (code, told) in codes.items()},
        "agrees": agrees,
        "events": events,
        "evicted": counts["collect"].value + len(last.evicted),
        "fits": last.fits,
    }


def compare(root: Path, writers: int, turns: int) -> dict[str, Any]:
    """How the bundle in the end differs from the union of everything that was saved."""
    place = Place(root)
    bundle = place.bundle()
    assert bundle is not None
    every = [adds(writer, turn) for writer in range(writers) for turn in range(turns)]
    offered: dict[Any, set[bytes]] = {}
    for artifacts, _ in every:
        for artifact in artifacts:
            offered.setdefault(artifact.identity, set()).add(artifact.data)
    loaded = read_artifacts(place.store, bundle, lambda entry: True)
    found = {artifact.identity: artifact.data for artifact in loaded.artifacts}
    units = {unit.id: unit for _, coverage in every for unit in coverage.units}
    kept = {unit.id: unit for unit in bundle.coverage.units}
    rows = {row for _, coverage in every for row in coverage.shapes}
    return {
        "artifacts": len(found),
        "missing": len(offered.keys() - found.keys()),
        "strange": len(found.keys() - offered.keys()),
        "altered": sum(data not in offered[identity] for identity, data in found.items()),
        "units": kept == units,
        "shapes": set(bundle.coverage.shapes) == rows and len(bundle.coverage.shapes) == len(rows),
        "generation": bundle.generation,
    }


if __name__ == "__main__":
    scene, folder, *numbers = sys.argv[1:]
    began = time.monotonic()
    result = {"compete": compete, "quarrel": quarrel}[scene](Path(folder), *map(int, numbers))
    print(json.dumps({**result, "seconds": round(time.monotonic() - began, 1)}))  # noqa: T201  its answer
