"""Saving twice keeps both shapes, a warm save never narrows the bundle: what raw Mega-cache gets wrong."""

from __future__ import annotations

from pathlib import Path

from tests.functional.conftest import Run

RUN = """
    module = Product()
    session = cachekit.attach(module, dir=store)
    for rows in sizes:
        call(module, rows, 8)
        session.register_shape(rows, 8, 1)
        session.save(wait=True)
    report = session.report().to_json()
    session.close()
    tell(report=report)
"""

RAW = """
    module = Product()
    module.compile(dynamic=False)
    if load:
        torch.compiler.load_cache_artifacts(open(file, "rb").read())
    from torch._dynamo.utils import counters
    misses = {}
    for rows in (4, 6):
        call(module, rows, 8)
        misses[rows] = counters["inductor"]["fxgraph_cache_miss"]
        if not load:
            open(file, "wb").write(torch.compiler.save_cache_artifacts()[0])
    tell(misses=misses)
"""


def test_torch_itself_loses_the_first_of_two_saves(process: Run, tmp_path: Path) -> None:
    """Raw Mega-cache, saved after each of two shapes, compiles the first one again; if not, torch mended it."""
    process(RAW, file=str(tmp_path / "raw"), load=False)

    again = process(RAW, file=str(tmp_path / "raw"), load=True)

    assert again["misses"] == {"4": 1, "6": 1}


def test_both_shapes_hit_after_two_saves(process: Run) -> None:
    """A shape that is saved later joins the earlier ones: in a new process both are warm."""
    process(RUN, sizes=[4, 6])

    report = process(RUN, sizes=[4, 6])["report"]

    assert report["misses"] == {}
    assert report["hits"]["inductor"] == 2
    assert report["shapes"] == ["4x8x1", "6x8x1"]


def test_a_warm_start_that_uses_less_does_not_shrink_the_bundle(process: Run) -> None:
    """A process that needs one of two shapes and something new leaves all three in the bundle."""
    process(RUN, sizes=[4, 6])
    process(RUN, sizes=[6, 7])

    report = process(RUN, sizes=[4, 6, 7])["report"]

    assert report["misses"] == {}
    assert report["hits"]["inductor"] == 3


def test_a_hit_starts_clean_and_saves_nothing(process: Run) -> None:
    """A start that is covered writes no new generation."""
    cold = process(RUN, sizes=[4])["report"]

    warm = process(RUN, sizes=[4])["report"]

    assert warm["state"] == "clean"
    assert warm["saved_generations"] == []
    assert warm["generation"] == cold["generation"]
