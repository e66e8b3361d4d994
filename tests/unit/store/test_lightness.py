from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.store.world import World, inductor

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "cryptography", "zstandard", "sqlalchemy", "alembic", "boto3", "cachekit.manifest")


def _loaded(script: str, *arguments: str) -> set[str]:
    """Which of the heavy modules a fresh process has after running the code."""
    full = (
        f"import json, sys\n{script}\nprint(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", full, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", ["base", "local", "memory", "keys", "fetch", "publish"])
def test_importing_a_store_module_loads_nothing_heavy(module: str) -> None:
    """Each module loads in milliseconds; what unpacks, verifies or compiles comes when it is needed."""
    assert _loaded(f"import cachekit.store.{module}") == set()


def test_finding_nothing_needs_nothing(tmp_path: Path) -> None:
    """A machine that never saved anything pays for no cryptography to learn that."""
    script = """
from cachekit.store.local import DirectoryStore
from cachekit.store.fetch import fetch
from cachekit.store import keys
assert fetch(DirectoryStore(sys.argv[1]), "f" * 64, keys.trusted(sys.argv[1])) is None
"""
    assert _loaded(script, str(tmp_path / "store")) == set()


def test_a_warm_start_loads_only_what_verifies_and_unpacks(world: World) -> None:
    """Reading a bundle and its artifacts takes cryptography and zstandard, and neither torch nor SQLAlchemy."""
    world.save(inductor("a"))
    script = """
from cachekit.bundle.signing import SigningKey
from cachekit.store.local import DirectoryStore
from cachekit.store.publish import fetch, read_artifacts
store, key = DirectoryStore(sys.argv[1]), SigningKey(sys.argv[2].encode())
bundle = fetch(store, store.profiles()[0], {key.keyid: key.public})
assert len(read_artifacts(store, bundle, lambda entry: True).artifacts) == 1
"""
    root = getattr(world.store, "root")  # noqa: B009  only a directory store has one

    assert _loaded(script, str(root), world.key.pem.decode()) == {"cryptography", "zstandard"}
