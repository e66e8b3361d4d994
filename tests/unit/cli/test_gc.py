"""`cachekit gc`: what goes and what stays, in words and in JSON, and the statuses it ends with."""

from __future__ import annotations

import pytest

from cachekit.bundle import Coverage, Unit
from cachekit.manifest import Manifest
from cachekit.store import guards
from tests.unit.cli.homes import Home, artifacts, run

pytestmark = pytest.mark.skipif(not guards.SUPPORTED, reason="folders cannot be locked here")


def _bytes(home: Home) -> int:
    return sum(path.stat().st_size for path in (home.dir / "store").rglob("*") if path.is_file())


@pytest.fixture
def two(home: Home) -> Home:
    """A home with two bundles of the same artifacts, indexed; the second one was used more."""
    for batch, family in enumerate(("Flux", "Wan")):
        bundle = home.publish(pipeline__family=family)
        with Manifest(home.manifest) as manifest:
            manifest.index(bundle)
            for _ in range(1 + 5 * batch):
                manifest.add_uses("local", bundle.fingerprint_id, bundle.coverage.unit_ids)
    return home


def test_a_store_that_fits_is_left_as_it_is(stocked: Home) -> None:
    """With the default limit nothing goes from an ordinary store."""
    before = {name: data for name, (_, data) in stocked.files().items()}

    answer = stocked.run("gc", "--json")

    assert answer.code == 0
    assert answer.json["fits"] is True
    assert answer.json["evicted"] == []
    assert answer.json["bytes_before"] == answer.json["bytes_after"] == _bytes(stocked)
    assert {name: data for name, (_, data) in stocked.files().items()} == before


def test_a_dry_run_tells_and_changes_nothing(two: Home) -> None:
    """What would go is named with shapes, bytes and uses; every file is as it was."""
    store = {name: data for name, data in two.files().items() if name.startswith("store")}

    answer = two.run("gc", "--dry-run", "--max-size", "1", "--json")

    assert answer.json["dry_run"] is True
    assert answer.json["bytes_after"] < answer.json["bytes_before"]
    assert len(answer.json["removed"]) == 2
    first, *_, last = answer.json["evicted"]
    assert (first["starts"], last["starts"]) == (1, 6)
    assert set(first["shapes"]) <= {"512x512x1", "1024x768x2,frames=17"}
    assert {name: data for name, data in two.files().items() if name.startswith("store")} == store


@pytest.mark.parametrize("less", [1, 100, 5_000, 20_000, 10**9])
def test_a_dry_run_comes_to_what_the_real_run_comes_to(two: Home, less: int) -> None:
    """Sizes, evictions and removals are those of the run that is not dry."""
    two.store.write_blob(b"nobody names this")
    limit = str(max(1, _bytes(two) - less))

    told = two.run("gc", "--dry-run", "--max-size", limit, "--json").json
    done = two.run("gc", "--max-size", limit, "--json").json

    for name in ("bytes_before", "bytes_after", "unneeded_bytes", "evicted", "removed", "fits"):
        assert told[name] == done[name], name
    assert done["bytes_after"] == _bytes(two) >= 0


def test_the_least_used_goes_first(two: Home) -> None:
    """Of two bundles the one that was used less goes, and the manifest says so at once."""
    limit = _bytes(two) - 100

    answer = two.run("gc", "--max-size", str(limit), "--json")

    assert answer.code == 0
    assert answer.json["bytes_after"] == _bytes(two) <= limit
    assert {row["starts"] for row in answer.json["evicted"]} == {1}
    gone = {row["unit"] for row in answer.json["evicted"]}
    with Manifest(two.manifest) as manifest:
        assert not {(use.unit, use.starts) for use in manifest.uses()} & {(unit, 1) for unit in gone}
        assert manifest.events(kind="evicted")
    assert two.run("verify").code == 0
    assert two.run("coverage").code == 0


def test_what_is_in_use_is_named(two: Home) -> None:
    """A bundle that a live process holds stays, which leaves the store too large: status 1, and who it is."""
    ids = [row["id"] for row in two.run("ls", "--json").json["bundles"]]
    held = two.store.use(ids[0])

    answer = two.run("gc", "--max-size", "1 B")

    assert held is not None
    assert answer.code == 1
    assert f"stays: {ids[0][:12]} (local): in use by a live process" in answer.out
    assert "larger than its limit" in answer.out
    assert [row["id"] for row in two.run("ls", "--json").json["bundles"]] == [ids[0]]
    held.release()
    assert two.run("gc", "--max-size", "1").code == 0
    assert two.run("ls", "--json").json["bundles"] == []


def test_without_a_manifest_age_comes_from_the_files(stocked: Home) -> None:
    """A lost manifest is said, and no reason not to collect."""
    answer = stocked.run("gc", "--max-size", "1", "--json")

    assert answer.code == 0
    assert "no manifest" in answer.err
    assert answer.json["notes"]
    assert {row["starts"] for row in answer.json["evicted"]} == {1}
    assert answer.json["removed"] != []


def test_a_damaged_manifest_is_said_too(stocked: Home) -> None:
    """It is left as it is; `rebuild` is for that."""
    stocked.manifest.write_bytes(b"this is not a database, only some text that is long enough")

    answer = stocked.run("gc", "--max-size", "1", "--json")

    assert answer.code == 0
    assert "manifest is not used" in answer.err
    assert stocked.manifest.read_bytes().startswith(b"this is not")


def test_what_nobody_needs_goes_without_a_limit(stocked: Home) -> None:
    """`--max-size none` evicts nothing and still removes what a killed writer left."""
    stocked.store.write_blob(b"nobody names this")

    answer = stocked.run("gc", "--max-size", "none", "--json")

    assert answer.json["max_size"] is None
    assert answer.json["unneeded_bytes"] == 17
    assert answer.json["evicted"] == []


def test_the_limit_comes_from_the_environment(stocked: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `--max-size` the variable counts."""
    monkeypatch.setenv("CACHEKIT_MAX_SIZE", "1kb")

    assert stocked.run("gc", "--dry-run", "--json").json["max_size"] == 1000


@pytest.mark.parametrize("given", ["10G", "lots", "0"])
def test_a_size_that_is_none_is_status_2(given: str, stocked: Home) -> None:
    """The message says what is allowed, and nothing was touched."""
    before = stocked.files()

    answer = stocked.run("gc", "--max-size", given)

    assert answer.code == 2
    assert "10GiB, 500MB" in answer.err
    assert "--max-size=" in answer.err
    assert "CACHEKIT_MAX_SIZE" not in answer.err
    assert stocked.files() == before


def test_private_folders_of_dead_processes_go(stocked: Home) -> None:
    """Those that no live process holds are counted, and removed by the run that is not dry."""
    dead = stocked.dir / "process" / "123-abc"
    (dead / "inductor").mkdir(parents=True)

    assert stocked.run("gc", "--dry-run", "--json").json["private_folders"] == 1
    assert dead.exists()
    assert "1 private folder of dead processes" in stocked.run("gc").out
    assert not dead.exists()


def test_units_without_a_label_and_loose_artifacts_are_told(home: Home) -> None:
    """What no shape names is shown all the same."""
    made = artifacts()
    home.publish(made, coverage=Coverage((Unit(False, "{}", needs=(made[0].identity.id,)),)))

    answer = home.run("gc", "--dry-run", "--max-size", "1")

    assert "(no unit)" in answer.out
    assert "1 fingerprint would be removed" in answer.out


def test_help_names_the_default_and_the_choice() -> None:
    """Options are found in `--help`."""
    told = run("gc", "--help").out

    assert "--dry-run" in told
    assert "--max-size" in told
