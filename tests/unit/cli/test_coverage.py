"""`cachekit coverage`."""

from __future__ import annotations

from cachekit.bundle import Coverage
from cachekit.identity.fingerprint import Fingerprint
from tests.unit.cli.homes import Home, artifacts, components, covering

FID = Fingerprint.of(components()).id


def test_each_shape_names_its_units_and_their_artifacts(stocked: Home) -> None:
    """Sizes, units, needed artifacts by kind and key, and what compiling took."""
    answer = stocked.run("coverage", FID[:8], "--json")

    (bundle,) = answer.json["bundles"]
    small, large = bundle["shapes"]
    assert answer.code == 0
    assert (small["width"], small["height"], small["batch"], small["variant"]) == (512, 512, 1, {})
    assert large["variant"] == {"frames": 17}
    assert (small["covered"], small["artifacts"], small["missing"], small["compile_s"]) == (True, 2, [], 20.0)
    (unit,) = small["units"]
    assert not unit["dynamic"]
    assert {need["kind"] for need in unit["needs"]} == {"inductor", "aot_autograd"}
    assert {need["key"] for need in unit["needs"]} < {one.key for one in artifacts()}
    assert all(need["present"] for need in unit["needs"])


def test_people_see_a_line_per_shape(stocked: Home) -> None:
    """Shape, artifacts there and needed, seconds, covered."""
    (line,) = [line for line in stocked.run("coverage").out.splitlines() if "1024x768x2,frames=17" in line]

    assert "static:" in line
    assert "2 of 2" in line
    assert "21.0 s" in line
    assert "yes" in line


def test_a_missing_artifact_uncovers_the_shapes_that_need_it(stocked: Home) -> None:
    """The shape is shown as not covered, the artifact is named, and the status is 1."""
    (gone,) = [
        entry
        for entry in stocked.fetch(FID).entries
        if entry.identity.id == covering(artifacts()).units[0].needs[1]
    ]
    stocked.blob(gone.stored_digest).unlink()

    answer = stocked.run("coverage", "--json")

    small, large = answer.json["bundles"][0]["shapes"]
    assert answer.code == 1
    assert (small["covered"], small["missing"]) == (False, [gone.identity.id])
    assert large["covered"]
    assert f"missing: {gone.kind} {gone.key}" in stocked.run("coverage").out


def test_units_without_a_label_are_shown(home: Home) -> None:
    """An engine that registers no shape still sees what is covered."""
    made = artifacts()
    home.publish(made, coverage=Coverage(covering(made).units))

    answer = home.run("coverage", "--json")

    assert answer.json["bundles"][0]["shapes"] == []
    assert [row["artifacts"] for row in answer.json["bundles"][0]["unlabelled"]] == [2, 2]
    assert "(no label)" in home.run("coverage").out


def test_a_bundle_that_covers_nothing_says_so(home: Home) -> None:
    """Artifacts alone, without units, cover no shape."""
    home.publish(coverage=Coverage())

    assert "no shape is covered" in home.run("coverage").out


def test_a_bundle_that_cannot_be_read_hides_no_other(stocked: Home) -> None:
    """It is named on standard error, the others are told, the status is 1; asked for by id it is an error."""
    broken = stocked.publish(plan__device="cuda:1").fingerprint_id
    (document,) = (stocked.dir / "store/local/profiles" / broken / "generations").iterdir()
    document.write_bytes(b"{")

    answer = stocked.run("coverage", "--json")

    assert answer.code == 1
    assert len(answer.json["bundles"]) == 1
    assert [problem["where"] for problem in answer.json["problems"]] == [broken]
    assert broken in answer.err
    assert stocked.run("coverage", broken).code == 4


def test_a_stray_file_among_the_profiles_disturbs_nobody(stocked: Home) -> None:
    """A note that somebody left there is no profile."""
    (stocked.dir / "store/local/profiles/notes").write_text("mine")
    (stocked.dir / "store/local/profiles/readme.txt").write_text("mine")

    for verb in (("coverage",), ("ls",), ("rebuild",), ("verify",)):
        assert stocked.run(*verb).code == 0, verb
