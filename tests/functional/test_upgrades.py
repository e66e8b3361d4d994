"""Stores of other releases: what an earlier one wrote is kept and migrated, what a newer one wrote is left alone."""

from __future__ import annotations

import importlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from cachekit.bundle import document, from_payload, signing, to_payload
from cachekit.cli import app
from cachekit.identity import toolchain
from cachekit.manifest import Manifest
from cachekit.manifest.engine import REVISIONS
from cachekit.store import statement
from tests.fixtures.stores.generate import Keeper, describe
from tests.functional.conftest import Run
from tests.functional.releases import NEWER, RELEASED, STORES, files, unpack

# --- earlier releases ----------------------------------------------------------------------------------------------


@pytest.fixture(params=RELEASED)
def released(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of the store that a released schema wrote, and what must be read from it."""
    folder = tmp_path / "cachekit"
    return folder, unpack(request.param, folder)


def _run(folder: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments, "--dir", str(folder), "--json"], env={"COLUMNS": "200"})


def _rows(folder: Path, table: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(folder / "manifest.sqlite3")
    try:
        return connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
    finally:
        connection.close()


def test_every_schema_that_was_raised_left_a_store_behind() -> None:
    """Whoever raises a schema number keeps a store of the schema before, so that migrating it can be tested."""
    recorded = [
        json.loads(path.read_text(encoding="utf-8"))["schemas"] for path in STORES.glob("schema-*.json")
    ]
    present = {
        "bundle": document.SCHEMA,
        "statement": statement.SCHEMA,
        "fingerprint": importlib.import_module("cachekit.identity.fingerprint").SCHEMA,
        "toolchain": toolchain.SCHEMA,
    }
    for name, schema in present.items():
        kept = {schemas[name] for schemas in recorded}
        missing = ({*range(1, schema)} or {1}) - kept
        assert not missing, f"{name} has schema {schema}: keep a store of {missing} (tests/fixtures/stores)"
    revisions = {schemas["manifest"] for schemas in recorded}
    assert {*(REVISIONS[:-1] or REVISIONS)} <= revisions, "keep a store with each revision before the last"


def test_it_is_read_to_the_last_digest(released: tuple[Path, dict[str, Any]]) -> None:
    """Signature, structure and every artifact, unpacked, are exactly what they were when it was written."""
    folder, golden = released
    keeper = Keeper(folder)

    found = {fid: describe(keeper, fid) for fid in keeper.store.profiles()}

    assert json.loads(json.dumps(found)) == golden["bundles"]
    assert keeper.key.keyid == golden["keyid"]


def test_a_document_of_the_present_schema_is_written_as_it_was_read(
    released: tuple[Path, dict[str, Any]],
) -> None:
    """A field more or less, or in another form, is another schema, and its number has to be raised."""
    keeper = Keeper(released[0])
    for fid in keeper.store.profiles():
        for head in keeper.store.generations(fid):
            envelope = keeper.store.read_generation(fid, head)
            payload = signing.verify(envelope, keeper.trusted).payload
            if json.loads(payload)["schema"] == document.SCHEMA:
                assert to_payload(from_payload(payload)) == payload


def test_every_verb_answers_and_nothing_is_wrong(released: tuple[Path, dict[str, Any]]) -> None:
    """It can be listed, shown, explained and checked without a finding, and looking changes nothing."""
    folder, golden = released
    before = files(folder, without=("manifest.sqlite3",))
    fids = sorted(golden["bundles"])

    listed, verified = _run(folder, "ls"), _run(folder, "verify")
    explained = _run(folder, "explain", *fids)

    assert sorted(row["id"] for row in json.loads(listed.stdout)["bundles"]) == fids
    assert (verified.exit_code, json.loads(verified.stdout)["problems"]) == (0, [])
    assert "plan.dynamic" in explained.stdout
    for fid in fids:
        assert (_run(folder, "show", fid).exit_code, _run(folder, "coverage", fid).exit_code) == (0, 0)
    assert files(folder, without=("manifest.sqlite3",)) == before


def test_its_manifest_is_migrated_in_place(released: tuple[Path, dict[str, Any]]) -> None:
    """Opening brings it to the newest revision; no row of any table is lost, events included."""
    folder, golden = released
    before = {table: _rows(folder, table) for table in golden["manifest"] if table != "alembic_version"}

    with Manifest(folder / "manifest.sqlite3") as manifest:
        indexed = {record.fingerprint_id: record.generation for record in manifest.bundles()}

    assert _rows(folder, "alembic_version") == [(REVISIONS[-1],)]
    assert {table: len(rows) for table, rows in before.items()} == {
        table: count for table, count in golden["manifest"].items() if table != "alembic_version"
    }
    for table, rows in before.items():  # a migration may add columns at the end of a row
        assert [row[: len(old)] for row, old in zip(_rows(folder, table), rows, strict=True)] == rows
    assert indexed == {fid: one["generation"] for fid, one in golden["bundles"].items()}


def test_a_save_on_top_keeps_everything(released: tuple[Path, dict[str, Any]]) -> None:
    """The next generation holds all that there was, tombstones, spares, epochs and coverage included."""
    folder, golden = released
    keeper = Keeper(folder)
    (one, other) = sorted(golden["bundles"], key=lambda fid: len(golden["bundles"][fid]["artifacts"]))
    extra = _not_in(keeper, of=other, than=one)

    keeper.publish(one, extra)

    found, was = json.loads(json.dumps(describe(keeper, one))), golden["bundles"][one]
    assert found["generation"] == was["generation"] + 1
    assert found["artifacts"] == was["artifacts"] | {extra.identity.id: [extra.kind, extra.key, extra.digest]}
    for name in ("epochs", "spare", "tombstones", "units", "shapes", "cold"):
        assert found[name] == was[name]
    assert _run(folder, "verify").exit_code == 0


def _not_in(keeper: Keeper, *, of: str, than: str) -> Any:
    """An artifact of one bundle that another lacks."""
    from cachekit.store.publish import read_artifacts

    has = {entry.identity for entry in keeper.fetch(than).entries}
    loaded = read_artifacts(keeper.store, keeper.fetch(of), lambda entry: entry.identity not in has)
    return next(artifact for artifact in loaded.artifacts if artifact.kind == "inductor")


# --- newer releases ------------------------------------------------------------------------------------------------

SESSIONS = """
    import logging, shutil
    from pathlib import Path
    from tests.functional.releases import NEWER, files

    class Kept(logging.Handler):
        def emit(self, record):
            lines.append([record.levelname, getattr(record, "cachekit", {}), record.getMessage()])

    def run(folder, rows):
        module = Product()
        session = cachekit.attach(module, dir=folder)
        output = call(module, rows, 8).sum().item()
        session.save(wait=True)
        session.close()
        return output, session.fingerprint and session.fingerprint.id

    made = Path(store)
    _, fid = run(made, 4)
    logging.getLogger("cachekit").addHandler(Kept(logging.WARNING))
    told = {}
    for number, (name, change) in enumerate(NEWER.items()):
        lines = []
        folder = made.with_name(f"newer-{number}")
        shutil.copytree(made, folder, ignore=shutil.ignore_patterns("process"))
        change(folder, fid)
        before = files(folder)
        output, _ = run(folder, 6)
        told[name] = {"output": output, "before": before, "after": files(folder), "lines": lines}
    tell(stores=told)
"""

MAY_CHANGE = {
    "a later revision of the manifest": ("seen/",),
    "more in what was seen": ("manifest.sqlite3",),
}
"""Where the newer thing is not there: what happened, and what was seen."""

SAVED = ("a later contribution and fingerprint", "a later revision of the manifest", "more in what was seen")
"""The bundle itself is not newer: it is saved beside what is."""

TOLD = {
    "a bundle for newer readers": [("unused", "newer-schema"), ("unsaved", "newer-schema")],
    "a bundle that says more": [("unsaved", "newer-schema")],
    "more in the head": [("unused", "newer-schema"), ("unsaved", "newer-schema")],
    "more in what was seen": [(None, None)],
    "another kind of key": [("unsaved", "unsupported")],
    "a later revision of the manifest": [("unindexed", None)],
    "a later contribution and fingerprint": [],
}
"""Event and error of each warning."""


@pytest.mark.slow
def test_a_session_leaves_what_a_newer_release_wrote_as_it_is(process: Run) -> None:
    """From attach to close the engine runs, no byte of the newer release's changes, and a line says what to do."""
    told = process(SESSIONS)["stores"]

    assert len({found["output"] for found in told.values()}) == 1
    for name, found in told.items():
        before, after = found["before"], found["after"]
        saved = [path for path in after.keys() - before.keys() if path.startswith("store/")]
        changed = {path for path, digest in before.items() if after.get(path) != digest}
        if name in SAVED:
            changed = {path for path in changed if not path.endswith("/head.json")}
        assert bool(saved) == (name in SAVED), name
        assert all(
            path.startswith(MAY_CHANGE.get(name, ("manifest.sqlite3", "seen/"))) for path in changed
        ), name
        assert [(line[1].get("event"), line[1].get("error")) for line in found["lines"]] == TOLD[name], name
        for _, facts, message in found["lines"]:
            assert facts.get("error", "newer-schema") != "newer-schema" or "upgrade cachekit" in message


@pytest.fixture(params=NEWER)
def newer(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, str]:
    """What is newer, the folder of a store in which it is, and the id of the profile that it is about."""
    folder = tmp_path / "newer"
    fid = min(unpack(RELEASED[-1], folder)["bundles"])
    NEWER[request.param](folder, fid)
    return request.param, folder, fid


def test_verbs_leave_what_a_newer_release_wrote_as_it_is(newer: tuple[str, Path, str]) -> None:
    """Whatever the command line is asked about such a store, it answers, names what is newer and changes no byte."""
    name, folder, fid = newer
    mine = () if "revision" in name else ("manifest.sqlite3",)
    before = files(folder, without=mine)
    looking = [["ls"], ["show", fid], ["coverage"], ["verify"], ["explain", fid]]
    changing = [["rebuild"], ["verify", "--repair"]]

    answers = [_run(folder, *arguments) for arguments in looking + changing]

    assert all(answer.exit_code in (0, 1, 4, 5) for answer in answers), name
    assert files(folder, without=mine) == before
    if name not in ("a bundle that says more", "another kind of key", "more in what was seen"):
        assert any("newer-schema" in answer.output for answer in answers)


NEEDED = {
    "a bundle for newer readers": ("store/local/profiles/{fid}/",),
    "a bundle that says more": ("store/local/profiles/{fid}/",),
    "more in the head": ("store/local/profiles/{fid}/",),
    "more in what was seen": ("seen/local/local/{fid}",),
    "another kind of key": ("keys/",),
    "a later revision of the manifest": ("manifest.sqlite3",),
    "a later contribution and fingerprint": (),
}


def test_collecting_takes_nothing_of_a_newer_release(newer: tuple[str, Path, str], tmp_path: Path) -> None:
    """Even where the store must shrink to nothing, a bundle that is not ours to judge keeps every file it needs."""
    name, folder, fid = newer
    unpack(RELEASED[-1], tmp_path / "as it was")
    bundle = Keeper(tmp_path / "as it was").fetch(fid)
    names = {f"blobs/sha256/{digest[:2]}/{digest}" for digest in bundle.blobs}
    names |= {f"contributions/{entry.contribution}" for entry in bundle.entries}
    mine = tuple(part.format(fid=fid) for part in NEEDED[name])
    if "bundle" in name or "head" in name:
        mine += tuple(f"store/local/{path}" for path in names)
    before = {path: digest for path, digest in files(folder).items() if path.startswith(mine)}

    answer = _run(folder, "gc", "--max-size", "1")

    assert answer.exit_code in (0, 1, 4), answer.output
    after = files(folder)
    assert {path for path, digest in before.items() if after.get(path) != digest} == set()


def test_every_verb_that_knows_a_store_is_asked() -> None:
    """A verb that is added is tried on newer stores, too."""
    asked = {"ls", "show", "coverage", "verify", "explain", "rebuild", "gc"}

    assert set(typer.main.get_group(app).commands) == asked | {"demo", "toolchain"}
