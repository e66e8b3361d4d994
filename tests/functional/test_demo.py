"""The demonstration itself, run once: real pipelines, four processes each, and what must be true of every one.

The run takes minutes and is shared by all tests here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("gguf")

from cachekit.demo.models import DEMOS

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 1800
NAMES = [demo.name for demo in DEMOS]
UNET, TRANSFORMER = NAMES
SHAPES = {UNET: ["64x64x1,cfg=true", "96x64x1,cfg=true"], TRANSFORMER: ["144x112x1", "176x80x1"]}
KEYS = {
    "name": str,
    "cold_s": float,
    "warm_s": float,
    "ratio": float,
    "hits": int,
    "misses": int,
    "raw_bytes": int,
    "stored_bytes": int,
    "bit_identical": bool,
    "shapes": list,
}

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Demo:
    """One finished run of ``cachekit demo --json``."""

    exit_status: int
    stdout: str
    stderr: str
    folder: Path

    def row(self, name: str) -> dict[str, Any]:
        """The pipeline's entry in the answer."""
        rows: list[dict[str, Any]] = json.loads(self.stdout)["pipelines"]
        return next(row for row in rows if row["name"] == name)

    def process(self, name: str, letter: str) -> dict[str, Any]:
        """The raw result of one of the pipeline's four processes."""
        found: dict[str, Any] = self.row(name)["processes"][letter]
        return found

    def latents(self, name: str, letter: str) -> dict[tuple[int, int], str]:
        """Digests of what one process generated, by size."""
        return {
            (one["width"], one["height"]): one["sha256"] for one in self.process(name, letter)["generations"]
        }


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demonstration as people run it, with the folder kept so that it can be looked at."""
    folder = tmp_path_factory.mktemp("demo") / "work"
    done = subprocess.run(
        [sys.executable, "-m", "cachekit", "demo", "--json", "--dir", str(folder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Demo(done.returncode, done.stdout, done.stderr, folder)


def test_it_succeeds(demo: Demo) -> None:
    """Exit status 0, no problem named, and nothing but the one document on standard output."""
    assert demo.exit_status == 0, demo.stderr
    assert json.loads(demo.stdout).keys() == {"pipelines"}
    assert [row["problems"] for row in json.loads(demo.stdout)["pipelines"]] == [[], []]


def test_the_document_has_the_promised_form(demo: Demo) -> None:
    """Every pipeline has every promised key, with a value of its type."""
    assert [row["name"] for row in json.loads(demo.stdout)["pipelines"]] == NAMES
    for name in NAMES:
        row = demo.row(name)
        assert {key: type(row[key]) for key in KEYS} == KEYS


def test_progress_is_shown(demo: Demo) -> None:
    """Standard error names each pipeline, and each process when it begins and when it has ended."""
    lines = demo.stderr.splitlines()
    for each in DEMOS:
        assert each.title in lines
    for letter in "ABCD":
        told = [line for line in lines if line.startswith(f"  {letter}  ")]
        assert [line.endswith("...") for line in told] == [True, False] * len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_starts_cold_and_saves(demo: Demo, name: str) -> None:
    """A hits nothing, compiles, is dirty after its generation, and clean with a first generation once saved."""
    a = demo.process(name, "A")
    assert a["report"]["hits"] == {}
    assert a["report"]["misses"].keys() >= {"inductor", "aot_autograd", "kernel"}
    assert a["kernel_compiles"] > 0
    assert [one["state"] for one in a["generations"]] == ["dirty"]
    assert a["report"]["state"] == "clean"
    assert a["report"]["saved_generations"] == [1]


@pytest.mark.parametrize("name", NAMES)
def test_a_shows_that_compiler_runs_are_counted(demo: Demo, name: str) -> None:
    """The cold start runs the compiler once a kernel and probes the vector ISA: a count of none means something."""
    a = demo.process(name, "A")
    assert a["cxx_compiles"] >= a["kernel_compiles"]
    assert a["isa_probes"] > 0


@pytest.mark.parametrize("letter", ["B", "D"])
@pytest.mark.parametrize("name", NAMES)
def test_a_covered_start_compiles_nothing(demo: Demo, name: str, letter: str) -> None:
    """With empty caches and every size covered: no miss, no C++ compile, no ISA probe, and hits of every kind."""
    start = demo.process(name, letter)
    assert start["report"]["misses"] == {}
    assert start["cxx_compiles"] == 0
    assert start["isa_probes"] == 0
    assert start["counters"]["inductor"].get("fxgraph_cache_miss", 0) == 0
    assert start["counters"]["aot_autograd"].get("autograd_cache_saved", 0) == 0
    assert start["report"]["hits"].keys() >= {"inductor", "aot_autograd", "kernel"}
    assert start["report"]["skipped"] == {}


@pytest.mark.parametrize("letter", ["B", "D"])
@pytest.mark.parametrize("name", NAMES)
def test_a_covered_start_is_clean_and_saves_nothing(demo: Demo, name: str, letter: str) -> None:
    """A hit starts clean, stays clean, and leaves the bundle's generation as it was."""
    start = demo.process(name, letter)
    before = demo.process(name, {"B": "A", "D": "C"}[letter])["report"]["generation"]
    assert {one["state"] for one in start["generations"]} == {"clean"}
    assert start["report"]["state"] == "clean"
    assert start["report"]["saved_generations"] == []
    assert start["report"]["generation"] == before


@pytest.mark.parametrize("name", NAMES)
def test_the_warm_start_was_worth_it(demo: Demo, name: str) -> None:
    """B's own report, measured against the recorded cold compile, and the clock around it agree."""
    row = demo.row(name)
    assert demo.process(name, "B")["report"]["effective"] is True
    assert row["warm_s"] < row["cold_s"]
    assert row["ratio"] == pytest.approx(row["cold_s"] / row["warm_s"], abs=0.01)


def test_the_unet_compiles_its_second_size_and_keeps_both(demo: Demo) -> None:
    """A static compile does not cover another size: C is dirty and saves again, and the first size is not lost."""
    c = demo.process(UNET, "C")
    assert c["report"]["misses"]["inductor"] == 1
    assert [one["state"] for one in c["generations"]] == ["dirty"]
    assert c["report"]["state"] == "clean"
    assert c["report"]["saved_generations"] == [2]
    assert c["report"]["shapes"] == SHAPES[UNET]
    assert demo.process(UNET, "D")["report"]["hits"]["inductor"] == 2


def test_the_transformer_takes_its_second_size_as_it_is(demo: Demo) -> None:
    """A dynamic compile covers another size: C compiles nothing and is clean; only the label is new."""
    c = demo.process(TRANSFORMER, "C")
    assert c["report"]["misses"] == {}
    assert c["cxx_compiles"] == 0
    assert c["isa_probes"] == 0
    assert [one["state"] for one in c["generations"]] == ["clean"]
    assert c["report"]["shapes"] == SHAPES[TRANSFORMER]


@pytest.mark.parametrize("name", NAMES)
def test_warm_latents_equal_cold_ones(demo: Demo, name: str) -> None:
    """At the first size A, B and D, at the second C and D, made the same latents bit for bit; the two sizes differ."""
    first, second = demo.latents(name, "D").items()
    assert dict([first]) == demo.latents(name, "A") == demo.latents(name, "B")
    assert dict([second]) == demo.latents(name, "C")
    assert first[1] != second[1]
    assert demo.row(name)["bit_identical"] is True


@pytest.mark.parametrize("name", NAMES)
def test_totals_are_those_of_the_warm_starts(demo: Demo, name: str) -> None:
    """Hits and misses of a row are B's and D's reports added up."""
    row = demo.row(name)
    reports = [demo.process(name, letter)["report"] for letter in "BD"]
    assert row["hits"] == sum(sum(report["hits"].values()) for report in reports) > 0
    assert row["misses"] == 0
    assert (row["cxx_compiles"], row["isa_probes"]) == (0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_kept_bundle_is_the_one_told_of(demo: Demo, name: str) -> None:
    """``cachekit ls`` on the kept folder shows the row's shapes and bytes, and the bundle is packed."""
    done = subprocess.run(
        [sys.executable, "-m", "cachekit", "ls", "--json", "--dir", str(demo.folder / "cachekit")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    row = demo.row(name)
    fingerprint = demo.process(name, "A")["report"]["fingerprint"]
    (bundle,) = [each for each in json.loads(done.stdout)["bundles"] if each["id"] == fingerprint]
    assert row["shapes"] == bundle["shapes"] == SHAPES[name]
    assert (row["raw_bytes"], row["stored_bytes"]) == (bundle["raw_bytes"], bundle["stored_bytes"])
    assert 0 < row["stored_bytes"] < row["raw_bytes"]
    assert bundle["generation"] == 2


def test_nothing_else_could_have_been_warm(demo: Demo) -> None:
    """Private folders are gone with their processes, and outside of them no covered start has left a single file."""
    assert [path for path in (demo.folder / "cachekit" / "process").iterdir() if path.is_dir()] == []
    for name in NAMES:
        for letter in "BD":
            own = demo.folder / "processes" / f"{name}-{letter}"
            assert [path.name for path in own.rglob("*") if path.is_file()] == ["stderr.log"]
