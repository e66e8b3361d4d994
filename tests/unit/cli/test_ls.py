"""`cachekit ls`."""

from __future__ import annotations

import io
import json
import os

import pytest
from rich.console import Console

from cachekit.cli import ls
from cachekit.identity.fingerprint import Fingerprint
from cachekit.manifest import Manifest
from tests.unit.cli.homes import Home, artifacts, components
from tests.unit.store.damage import as_user, open_the_way_to


def test_nothing_stored_is_said(home: Home) -> None:
    """People are told where nothing was found."""
    answer = home.run("ls")

    assert answer.code == 0
    assert f"nothing is stored in {home.dir}" in answer.out


def test_a_row_says_what_people_recognise_a_bundle_by(stocked: Home) -> None:
    """Pipeline, device, torch, shapes, counts, sizes and generation are in the JSON."""
    (row,) = stocked.run("ls", "--json").json["bundles"]

    assert row["id"] == Fingerprint.of(components()).id
    assert row["family"] == "StableDiffusionXL"
    assert row["denoisers"] == ["diffusers.UNet2DConditionModel"]
    assert (row["device"], row["torch"]) == ("cuda:0", "2.13.0")
    assert row["shapes"] == ["512x512x1", "1024x768x2,frames=17"]
    assert row["artifacts"] == 4
    assert row["raw_bytes"] == sum(len(one.data) for one in artifacts())
    assert 0 < row["stored_bytes"] < row["raw_bytes"]
    assert row["generation"] == 1


def test_people_see_the_same_in_one_line_per_bundle(stocked: Home) -> None:
    """Without a terminal a bundle is one line, for grep."""
    stocked.publish(plan__device="cuda:1")

    lines = stocked.run("ls").out.splitlines()

    (line,) = [line for line in lines if "cuda:1" in line]
    assert "UNet2DConditionModel" in line
    assert "1024x768x2,frames=17" in line
    assert "301.9 KiB" in line


def test_last_use_is_the_newest_event_or_save(stocked: Home) -> None:
    """The manifest knows when a bundle was used; where there is none, the save counts."""
    fid = Fingerprint.of(components()).id
    assert stocked.run("ls", "--json").json["bundles"][0]["last_use"] == "2023-11-14T22:13:20+00:00"

    with Manifest(stocked.manifest) as manifest:
        manifest.add_event("saved", fid)

    assert stocked.run("ls", "--json").json["bundles"][0]["last_use"] > "2024"


def test_a_broken_manifest_hides_no_bundle(stocked: Home) -> None:
    """The store is what matters: the listing is complete, the manifest is named, the status is 1."""
    stocked.manifest.write_bytes(b"no manifest" * 1000)

    answer = stocked.run("ls", "--json")

    assert answer.code == 1
    assert len(answer.json["bundles"]) == 1
    assert [problem["where"] for problem in answer.json["problems"]] == ["manifest"]
    assert "manifest" in answer.err


def test_a_store_that_cannot_be_written_is_listed(stocked: Home) -> None:
    """A read-only folder costs the time of last use, and nothing else: no problem, status 0."""
    with Manifest(stocked.manifest) as manifest:
        manifest.add_event("saved", Fingerprint.of(components()).id)
    script = """
        import sqlite3, sys
        import cachekit.manifest.manifest, sqlalchemy.dialects.sqlite
        from cachekit.bundle import signing
        from cachekit.cli import app
        from typer.testing import CliRunner
        CliRunner().invoke(app, ["ls", "--dir", sys.argv[1]])
        for name in (sys.argv[1] + "/manifest.sqlite3" + end for end in ("-wal", "-shm")):
            os.path.exists(name) and os.unlink(name)
        become_ordinary()
        done = CliRunner().invoke(app, ["ls", "--json", "--dir", sys.argv[1]])
        print(done.exit_code, done.stdout)
    """
    for path in [stocked.dir, *stocked.dir.rglob("*")]:
        if os.geteuid() == 0:
            path.chmod(0o555 if path.is_dir() else 0o444)
    if os.geteuid() == 0:
        open_the_way_to(stocked.dir)
    else:
        stocked.dir.chmod(0o500)

    code, _, document = as_user(script, str(stocked.dir)).partition(" ")
    stocked.dir.chmod(0o700)

    assert (code, json.loads(document).get("problems")) == ("0", []), document
    assert len(json.loads(document)["bundles"]) == 1


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_terminal_squeezes_nothing(stocked: Home, width: int) -> None:
    """At 80 columns every word is whole: what does not fit beside each other stands below each other."""
    rows = stocked.run("ls", "--json").json["bundles"]
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)

    ls._draw({"bundles": rows, "problems": [], "dir": "", "namespace": ""}, console)

    assert isinstance(console.file, io.StringIO)
    told = console.file.getvalue()
    for word in (
        "StableDiffusionXL",
        "UNet2DConditionModel",
        "1024x768x2,frames=17",
        "torch 2.13.0",
        "2023-11-1",
    ):
        assert word in told
    assert rows[0]["id"][:12] in told


def test_a_bundle_that_cannot_be_read_hides_no_other(stocked: Home) -> None:
    """One damaged document is named with its fingerprint; the others are listed; nothing is moved."""
    broken = stocked.publish(plan__device="cuda:1")
    (document,) = (stocked.dir / "store/local/profiles" / broken.fingerprint_id / "generations").iterdir()
    document.write_bytes(document.read_bytes()[:-10])
    before = stocked.files()

    answer = stocked.run("ls", "--json")

    assert answer.code == 1
    assert [row["device"] for row in answer.json["bundles"]] == ["cuda:0"]
    assert [(one["where"], one["code"]) for one in answer.json["problems"]] == [
        (broken.fingerprint_id, "corrupt")
    ]
    assert broken.fingerprint_id in answer.err
    assert stocked.files() == before


def test_text_of_others_cannot_steer_the_terminal(home: Home) -> None:
    """Names come from documents, so markup and escape sequences in them are shown, not obeyed."""
    home.publish(pipeline__family="[red]evil\x1b[2J\nfamily[/red]")

    answer = home.run("ls")

    assert "\x1b" not in answer.out
    assert "[red]evil?[2J family[/red]" in answer.out
