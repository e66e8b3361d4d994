"""What four starts prove: a row without problems, or one that names each of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cachekit.bundle import Artifact, Bundle, Coverage, Entry, Shape, ShapeRow, Unit
from cachekit.demo import outcome
from cachekit.demo.models import SDXL
from cachekit.demo.outcome import PROCESSES, Kept
from cachekit.demo.start import Generation, Started

KEPT = Kept(1000, 100, ("64x64x1,cfg=true", "96x64x1,cfg=true"))
LATENTS = {SDXL.sizes[0]: "1" * 64, SDXL.sizes[1]: "2" * 64}


def started(process: str) -> Started:
    """A start as it should be: A and C compile, B and D hit."""
    warm = process in "BD"
    made = {"inductor": 1, "aot_autograd": 1, "kernel": 3}
    return Started(
        process=process,
        import_s=2.0,
        attach_s=0.25,
        first_s=8.0 if warm else 64.0,
        save_s=0.5,
        generations=[
            Generation(
                width=w, height=h, seconds=1.0, sha256=LATENTS[w, h], state="clean" if warm else "dirty"
            )
            for w, h in outcome.sizes_of(SDXL, process)
        ],
        cxx_compiles=0 if warm else 4,
        isa_probes=12 if process == "A" else 0,
        kernel_compiles=0 if warm else 3,
        report={
            "state": "clean",
            "hits": made if warm else {},
            "misses": {} if warm else made,
            "saved_generations": [] if warm else [1],
            "reasons": [],
        },
        counters={},
    )


@pytest.fixture
def starts() -> dict[str, Started]:
    """The four starts of a demonstration that went well."""
    return {process: copy.deepcopy(started(process)) for process in PROCESSES}


def test_a_row_says_what_was_measured(starts: dict[str, Started]) -> None:
    """Cold is A, warm is B, hits and misses are totals over B and D, and nothing is a problem."""
    found = outcome.row(SDXL, starts, KEPT)

    assert found | {"processes": None} == {
        "name": "sdxl",
        "cold_s": 64.0,
        "warm_s": 8.0,
        "ratio": 8.0,
        "hits": 10,
        "misses": 0,
        "raw_bytes": 1000,
        "stored_bytes": 100,
        "bit_identical": True,
        "shapes": list(KEPT.shapes),
        "cxx_compiles": 0,
        "isa_probes": 0,
        "problems": [],
        "processes": None,
    }
    assert found["processes"] == starts


def test_a_good_row_reads_as_a_sentence(starts: dict[str, Started]) -> None:
    """People are told both times and that nothing was compiled again."""
    text = outcome.meaning(SDXL, outcome.row(SDXL, starts, KEPT))

    assert "after 8.0 s instead of 64.0 s" in text
    assert "bit for bit" in text


@pytest.mark.parametrize(
    ("process", "change", "problem"),
    [
        ("B", {"misses": {"inductor": 1, "kernel": 2}}, "B compiled 1 inductor, 2 kernel"),
        ("D", {"hits": {}}, "D hit nothing"),
        ("B", {"cxx_compiles": 3}, "B ran the C++ compiler 3 times"),
        ("D", {"isa_probes": 12}, "D probed for vector instructions 12 times"),
        ("B", {"state": "disabled", "hits": {}, "reasons": ["no disk"]}, "B had no cache; no disk"),
        ("C", {"state": "disabled", "hits": {}, "reasons": ["no disk"]}, "C had no cache; no disk"),
    ],
)
def test_a_start_that_was_not_warm_is_a_problem(
    starts: dict[str, Started], process: str, change: dict[str, Any], problem: str
) -> None:
    """Whatever B or D compiled, probed for or did not hit is named, and so is a session without a cache."""
    for name, value in change.items():
        if name in starts[process]:
            starts[process][name] = value  # type: ignore[literal-required]
        else:
            starts[process]["report"][name] = value

    found = outcome.row(SDXL, starts, KEPT)

    assert found["problems"] == [problem]
    assert "not warm" in outcome.meaning(SDXL, found)


@pytest.mark.parametrize(
    ("process", "index", "problem"),
    [
        ("B", 0, "B made other latents than A at 64 × 64"),
        ("D", 0, "D made other latents than A at 64 × 64"),
        ("D", 1, "D made other latents than C at 96 × 64"),
    ],
)
def test_one_other_bit_is_a_problem(
    starts: dict[str, Started], process: str, index: int, problem: str
) -> None:
    """Latents that differ from the first ones of their size are named, with both processes."""
    starts[process]["generations"][index]["sha256"] = "f" * 64

    found = outcome.row(SDXL, starts, KEPT)

    assert found["bit_identical"] is False
    assert found["problems"] == [problem]


def test_a_size_that_is_not_covered_is_a_problem(starts: dict[str, Started]) -> None:
    """A bundle that lost the first size at the second save does not pass, whatever was hit."""
    found = outcome.row(SDXL, starts, Kept(1000, 100, KEPT.shapes[1:]))

    assert found["problems"] == ["64 × 64 is not covered at the end"]


def test_a_long_reason_is_cut_for_people_only(starts: dict[str, Started]) -> None:
    """A reason that lists a whole pipeline does not fill the screen; the raw result keeps it."""
    reason = "component " * 1000
    starts["B"]["report"] |= {"hits": {}, "reasons": [reason]}

    found = outcome.row(SDXL, starts, KEPT)

    assert len(found["problems"][0]) < 400
    assert found["processes"]["B"]["report"]["reasons"] == [reason]


def test_what_one_start_did_is_told_in_a_line() -> None:
    """A cold start names what it compiled, probed and saved; a warm one what it hit."""
    assert outcome.told(started("A")) == (
        "hit nothing; compiled 1 aot_autograd, 1 inductor, 3 kernel; 4 C++ compiles, 12 probes; saved generation 1"
    )
    assert outcome.told(started("B")) == "hit 1 aot_autograd, 1 inductor, 3 kernel; compiled nothing"


def test_sizes_and_shapes_come_from_the_bundle() -> None:
    """Bytes are totals over the artifacts, shapes the labels of the coverage; no bundle is nothing."""
    entries = tuple(
        Entry.of(
            Artifact("program", digit * 64, bytes(size)),
            bytes(size // 10),
            accepted=1,
            contribution="c",
            producer="p",
        )
        for digit, size in (("0", 1000), ("1", 500))
    )
    unit = Unit(dynamic=False, signature="{}")
    rows = tuple(ShapeRow(Shape.of(side, 64, 1), (unit.id,)) for side in (96, 64))
    bundle = Bundle("local", {}, "f" * 64, entries=entries, coverage=Coverage((unit,), rows))

    assert Kept.of(bundle) == Kept(1500, 150, ("64x64x1", "96x64x1"))
    assert Kept.of(None) == Kept(0, 0, ())
