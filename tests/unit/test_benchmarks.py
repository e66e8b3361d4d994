"""The benchmark scripts: they lose no measurement, and their ratios compare what was measured together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import children, environment, gpu_warm_start, summary, warm_start
from benchmarks.cost import bundle as cost_bundle
from benchmarks.cost import measure as cost_measure
from benchmarks.cost import run as cost_run
from benchmarks.cost import summary as cost_summary
from cachekit.bundle import Artifact, guards_of, partners_of, scan
from tests.unit.runtime.helpers import fixture_artifacts

HIT = {"inductor.fxgraph_cache_hit": 1}
MISS = {"inductor.fxgraph_cache_miss": 1}


def _child(row: str, *, first_step_s: float, counters: dict[str, int], **facts: Any) -> dict[str, Any]:
    shape = {"first_step_s": first_step_s, "counters": counters, "relative_error": 0.01, **facts}
    return {"row": row, "result": {"shapes": {"1024x1024x1": shape}}}


def test_ratios_compare_cold_with_warm_and_raw() -> None:
    """Best takes the quickest start of each row, median the middle one."""
    found = summary.summarise(
        [
            _child("cold", first_step_s=80, counters=MISS),
            _child("warm", first_step_s=20, counters=HIT, bit_identical=True),
            _child("warm", first_step_s=10, counters=HIT, bit_identical=True),
            _child("warm", first_step_s=16, counters=HIT, bit_identical=False),
            _child("raw", first_step_s=100, counters=MISS, bit_identical=True),
        ]
    )["shapes"]["1024x1024x1"]

    assert found["cold_over_warm"] == {"best": 8.0, "median": 5.0}
    assert found["cold_over_raw"] == {"best": 0.8, "median": 0.8}
    assert found["bit_identical"] == {"warm": False, "raw": True}


def test_no_ratio_where_nothing_was_compiled() -> None:
    """A shape that an earlier shape's graphs cover is no cold start, whatever its seconds say."""
    found = summary.summarise(
        [_child("cold", first_step_s=0.4, counters={}), _child("warm", first_step_s=0.1, counters={})]
    )["shapes"]["1024x1024x1"]

    assert found["covered"] is True
    assert not [key for key in found if "_over_" in key]


def test_a_row_that_failed_leaves_the_others_their_summary() -> None:
    """What a crashed start had measured before its first step is not taken for a start."""
    crashed = {"row": "warm", "result": {"shapes": {"1024x1024x1": {"eager_first_s": 1.0}}}}
    found = summary.summarise(
        [_child("cold", first_step_s=80, counters=MISS), crashed, {"row": "raw", "result": {}}]
    )

    assert found["shapes"]["1024x1024x1"]["cold_s"] == [80]
    assert "warm_s" not in found["shapes"]["1024x1024x1"]
    assert summary.lines("sdxl", found) == ["sdxl 1024x1024x1: cold 80.00 s"]


def test_what_is_needed_to_compare_is_run_first() -> None:
    """If time runs out, repetitions are missing rather than a whole row."""
    rows = [(row.row, row.run) for row in gpu_warm_start.plan(["sdxl"], warm=3, plain=False)]

    assert rows == [("cold", 1), ("warm", 1), ("raw", 1), ("warm", 2), ("warm", 3)]


def test_time_limit_leaves_a_document_that_names_what_is_missing(tmp_path: Path) -> None:
    """A run that may start nothing still writes its JSON, and says that it measured nothing."""
    out = tmp_path / "out.json"

    assert gpu_warm_start.main(["--tiny", "--only", "flux", "--time-limit", "-1", "--out", str(out)]) == 1
    document = json.loads(out.read_text())
    assert document["not_run"] == ["flux-cold-1", "flux-warm-1", "flux-raw-1"]
    assert document["versions"]["python"]
    assert str(tmp_path) not in out.read_text()


def test_a_crash_is_recorded_with_what_was_measured_before_it(tmp_path: Path) -> None:
    """A child that fails leaves its exit status, the end of its standard error, and its result so far."""
    program = tmp_path / "crash.py"
    program.write_text(
        "import json, sys\njson.dump({'eager': 1}, open(sys.argv[2], 'w'))\nraise SystemExit('it broke')\n"
    )
    child = children.run(
        "x", "crash", [], folder=tmp_path / "child", timeout=60, variables={"PYTHONPATH": str(tmp_path)}
    )

    assert (child.exit_status, child.result) == (1, {"eager": 1})
    assert "it broke" in child.stderr


def test_a_child_that_hangs_is_killed_and_recorded(tmp_path: Path) -> None:
    """A start that takes longer than it may ends the row, not the run."""
    (tmp_path / "hang.py").write_text("import threading\nthreading.Event().wait()\n")
    child = children.run(
        "x", "hang", [], folder=tmp_path / "child", timeout=0.5, variables={"PYTHONPATH": str(tmp_path)}
    )

    assert child.exit_status is None
    assert not child.ok


def test_children_start_with_empty_caches_and_no_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the caches nor the cachekit settings of whoever runs the benchmark reach a measured process."""
    monkeypatch.setenv("CACHEKIT_MODE", "off")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    found = children.bare_environment(tmp_path)

    assert "CACHEKIT_MODE" not in found
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR"):
        assert Path(found[name]).is_relative_to(tmp_path)
        assert list(Path(found[name]).iterdir()) == []


def test_results_name_no_folder_of_the_machine(tmp_path: Path) -> None:
    """Results are published: the work folder, the checkout and the home folder are words in them."""
    text = environment.without_paths(f"{tmp_path}/a {environment.ROOT}/b {Path.home()}/c", tmp_path)

    assert text == f"<{tmp_path.name}>/a <repository>/b <home>/c"


def test_demonstrations_are_compared_run_by_run() -> None:
    """Each run has its own ratio; best compares the quickest starts of all runs."""
    pipeline = {
        "name": "sdxl",
        "hits": 2,
        "misses": 0,
        "raw_bytes": 9,
        "stored_bytes": 3,
        "shapes": ["64x64x1"],
        "problems": [],
    }
    runs = [
        {"exit_status": 0, "pipelines": [{**pipeline, "cold_s": cold, "warm_s": warm, "bit_identical": True}]}
        for cold, warm in ((60.0, 10.0), (50.0, 5.0), (70.0, 10.0))
    ]
    found = warm_start.summarise([*runs, {"exit_status": None}])["sdxl"]

    assert (found["runs"], found["ratios"]) == (3, [6.0, 10.0, 7.0])
    assert (found["best"], found["median"]) == (10.0, 7.0)


def _measured(name: str, **result: Any) -> dict[str, Any]:
    return {"name": name, "exit_status": 0, "result": result}


def test_costs_are_told_beside_what_they_are_compared_with() -> None:
    """Every figure of cachekit's has torch's, or the same loop without a save, beside it."""
    quiet = {"longest_s": 0.001, "longest_without_queueing_s": 0.001}
    saving = {"longest_s": 0.009, "longest_without_queueing_s": 0.004}
    steps = {"find": 0.03, "torch": 0.2}
    start = {"report": {"load_s": 0.5, "steps": steps}, "attach_cpu_s": 0.6}
    found = cost_summary.summarise(
        [
            [
                _measured(
                    "save",
                    rounds=[
                        {
                            "bytes": 60,
                            "artifacts": 3,
                            "save_s": 2.0,
                            "hand_over_s": 0.0003,
                            "filing_s": 0.05,
                            "without_a_save": quiet,
                            "during_a_save": saving,
                        }
                    ],
                ),
                _measured(
                    "save_memory",
                    peak_bytes=30,
                    bundle_bytes=60,
                    torch={"peak_bytes": 120, "bundle_bytes": 60},
                ),
                _measured("install", **start, again={"load_s": 0.4, "steps": steps, "attach_cpu_s": 0.5}),
                _measured("install", **start, again={"load_s": 0.3, "steps": steps, "attach_cpu_s": 0.4}),
                _measured("load", load_s=0.7, again_s=0.3),
            ]
        ]
    )

    assert found["save"]["longest_during_a_save_without_queueing_ms"] == [4.0]
    assert found["save"]["longest_without_a_save_ms"] == [1.0]
    assert found["save_memory"] == {"peak_over_bundle": [0.5], "torch_over_bundle": [2.0]}
    assert (found["install"]["again_s"], found["install"]["torch_s"]) == ([0.3, 0.4], [0.7])
    assert found["install"]["steps_s"] == steps
    assert len(cost_summary.lines(found)) == 3


def test_a_measurement_that_failed_is_left_out_of_the_summary() -> None:
    """The others have their figures all the same."""
    crashed = {"name": "calls", "exit_status": 1, "result": {}}
    blocks = _measured("blocks", blocks=50, added_to_compiled_s=1e-4, per_block_s=2e-6, compiled_s=1e-3)

    assert cost_summary.summarise([[crashed, blocks]]).keys() == {"blocks"}
    assert cost_summary.lines({}) == []


def test_every_cost_can_be_measured() -> None:
    """The driver asks for what the measuring script knows, and for all of it."""
    assert {*cost_run.ONCE, *cost_run.REPEATED} == cost_measure.MEASUREMENTS.keys()


def test_a_copied_artifact_stays_a_whole_pickle() -> None:
    """Copies differ in keys and bytes, refer to each other, and pass the scan of pickles as the original does."""
    minor = ".".join(torch.__version__.split(".")[:2])
    copies = cost_bundle.multiplied([*fixture_artifacts("single", minor=minor)], 6_000_000)
    keys = {key for _, key, _ in copies}

    assert len(keys) == len(copies) > 4
    assert max(len(data) for _, _, data in copies) > cost_bundle.LARGE_BYTES
    for kind, key, data in copies:
        scan.check(kind, data)
        Artifact(kind, key, data, guards_of(kind, data))
        assert kind != "aot_autograd" or partners_of(data) <= keys
