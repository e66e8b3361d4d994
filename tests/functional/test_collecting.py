"""Collection beside real processes: what a live session uses stays, and readers never see half of anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.functional.conftest import Run
from tests.unit.store.shelves import Shelves

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_what_a_live_session_uses_stays_and_it_goes_on(process: Run) -> None:
    """With a limit of one byte, the bundle of a live session survives `gc`, the other goes; afterwards both may."""
    told = process("""
        import pathlib, subprocess
        from cachekit.manifest import Manifest

        def command(*arguments):
            done = subprocess.run(
                [sys.executable, "-m", "cachekit", *arguments, "--json", "--dir", store], capture_output=True, text=True
            )
            return done.returncode, json.loads(done.stdout)

        os.environ["CACHEKIT_DIR"] = store
        other = OtherProduct()
        with cachekit.attach(other) as session:
            call(other, 2, 8)
            session.save(wait=True)
        gone = session.report().fingerprint

        model = Product()
        session = cachekit.attach(model, plan=cachekit.Plan("cpu", dynamic=False))
        call(model, 2, 8)
        session.save(wait=True)
        kept = session.report().fingerprint
        status, first = command("gc", "--max-size", "1")

        call(model, 4, 8)
        session.save(wait=True)
        report = session.report()
        uses = {use.fingerprint_id for use in Manifest(pathlib.Path(store, "manifest.sqlite3")).uses()}
        verified, _ = command("verify")
        session.close()
        end, last = command("gc", "--max-size", "1")
        tell(gone=gone, kept=kept, status=status, first=first, generations=report.saved_generations,
             reasons=report.reasons, uses=sorted(uses), verified=verified, end=end, last=last)
    """)

    assert [row["id"] for row in told["first"]["removed"]] == [told["gone"]]
    assert [(row["id"], row["reason"]) for row in told["first"]["kept"]] == [
        (told["kept"], "in use by a live process")
    ]
    assert told["status"] == 1
    assert told["generations"] == [1, 2]
    assert not [reason for reason in told["reasons"] if "not saved" in reason or "cannot" in reason]
    assert told["uses"] == [told["kept"]]
    assert told["verified"] == 0
    assert [row["id"] for row in told["last"]["removed"]] == [told["kept"]]
    assert (told["end"], told["last"]["bytes_after"]) == (0, 0)


@pytest.mark.slow
def test_a_save_beyond_the_limit_collects_in_the_background(process: Run) -> None:
    """The store stays within CACHEKIT_MAX_SIZE by itself: the older pipeline goes, and the report says so."""
    told = process(
        """
        os.environ["CACHEKIT_DIR"] = store
        first = Product()
        with cachekit.attach(first) as session:
            call(first, 2, 8)
            session.save(wait=True)
        second = OtherProduct()
        session = cachekit.attach(second)
        call(second, 2, 8)
        session.save(wait=True)
        from cachekit.store.local import DirectoryStore
        kept = DirectoryStore(store + "/store").profiles()
        tell(kept=kept, mine=session.report().fingerprint, reasons=session.report().reasons)
        """,
        environment={"CACHEKIT_MAX_SIZE": "30kB"},
    )

    assert told["kept"] == [told["mine"]]
    assert any("CACHEKIT_MAX_SIZE" in reason for reason in told["reasons"])


_ACTORS = {
    "publish": """
        from tests.unit.store.shelves import graph, unit
        n = 0
        while not over():
            n += 1
            shelves.save(random.choice("abc"), f"{role} {n % 7}", size=6000)
            count()
    """,
    "collect": """
        while not over():
            done = shelves.collect(random.choice((1, 20_000, 60_000, None)), wait_s=0.5)
            assert done.problems == (), done.problems
            count(len(done.evicted))
    """,
    "read": """
        from cachekit.errors import CorruptError
        while not over():
            name = random.choice("abc")
            held = shelves.store.use(fingerprint(name).id)
            bundle = shelves.fetch(name)      # fails on anything that is half there
            count(bundle is not None)
            if held is not None:
                held.release()
    """,
    "glance": """
        from cachekit.store.fetch import fetch
        while not over():
            name = random.choice("abc")
            bundle = fetch(shelves.store, fingerprint(name).id, shelves.trusted, seen=shelves.seen("local"))
            assert bundle is None or complete(bundle) == bundle
            count(bundle is not None)
    """,
}

_ACTOR = """
import json, random, sys, time
from pathlib import Path
from cachekit.bundle import complete
from cachekit.bundle.signing import SigningKey
from tests.unit.store.shelves import Shelves, fingerprint

root, role, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
shelves = Shelves(root, SigningKey((root / "key.pem").read_bytes()))
rounds = counted = 0

def over():
    return time.monotonic() > end

def count(n=1):
    global rounds, counted
    rounds, counted = rounds + 1, counted + n

print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + seconds
"""


def _start(root: Path, kind: str, role: str, seconds: float) -> subprocess.Popen[str]:
    script = _ACTOR + textwrap.dedent(_ACTORS[kind]) + "\nprint(json.dumps([rounds, int(counted)]))\n"
    started = subprocess.Popen(
        [sys.executable, "-c", script, str(root), role, str(seconds)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


def test_readers_never_see_half_of_anything(tmp_path: Path) -> None:
    """Publishers, collectors and readers of one store at once: what a head names is whole for who holds the profile."""
    shelves = Shelves(tmp_path)
    (tmp_path / "key.pem").write_bytes(shelves.key.pem)
    kinds = ("publish", "publish", "collect", "collect", "read", "read", "glance")
    actors = [(kind, _start(tmp_path, kind, f"{kind}{n}", 4.0)) for n, kind in enumerate(kinds)]

    for _, actor in actors:
        assert actor.stdin is not None
        actor.stdin.write("go\n")
        actor.stdin.flush()
    ends = [(kind, *actor.communicate(timeout=60), actor.returncode) for kind, actor in actors]

    for kind, _, errors, status in ends:
        assert status == 0, f"{kind}: {errors[-3000:]}"
    rounds = [(kind, *json.loads(out.splitlines()[-1])) for kind, out, _, _ in ends]
    assert all(n > 0 for _, n, _ in rounds), rounds
    assert sum(seen for kind, _, seen in rounds if kind == "read") > 0, rounds
    for name in "abc":
        shelves.fetch(name)
    done = shelves.collect(None)
    assert (done.problems, done.kept) == ((), ())
