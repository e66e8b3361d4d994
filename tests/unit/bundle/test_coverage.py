from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachekit.bundle import Coverage, Shape, ShapeRow, Unit, accepts, canonical
from cachekit.bundle.coverage import merge
from cachekit.errors import ConfigurationError
from tests.unit.bundle.strategies import coverages, shapes


def tensor(
    sizes: list[Any], strides: list[Any] | None = None, dtype: str = "torch.float32"
) -> dict[str, Any]:
    """Return the leaf of one tensor."""
    leaf: dict[str, Any] = {"t": sizes, "dtype": dtype, "device": "cpu"}
    return leaf if strides is None else {**leaf, "stride": strides}


def call(*args: Any, **kwargs: Any) -> str:
    """Return a call signature."""
    return json.dumps({"args": list(args), "kwargs": kwargs}, sort_keys=True, separators=(",", ":"))


def dynamic(*args: Any, guards: str = "", ranges: Any = (), **kwargs: Any) -> Unit:
    """Return a dynamic unit over these inputs."""
    return Unit(dynamic=True, signature=call(*args, **kwargs), guards=guards, ranges=ranges)


def test_static_unit_accepts_its_signature_only() -> None:
    """A static compile covers one call signature."""
    unit = Unit(dynamic=False, signature=call(tensor([2, 4, 128, 128])))
    assert accepts(unit, call(tensor([2, 4, 128, 128])))
    assert not accepts(unit, call(tensor([2, 4, 96, 96])))
    assert not accepts(unit, call(tensor([2, 4, 128, 128], dtype="torch.bfloat16")))


def test_dynamic_unit_accepts_what_its_guards_accept() -> None:
    """Sizes are bound to symbols, and guards and ranges decide."""
    unit = dynamic(
        tensor(["s0", "s1", 64]), guards="Eq(Mod(s1, 8), 0)", ranges=(("s0", 2, None), ("s1", 8, 4096))
    )
    assert accepts(unit, call(tensor([2, 1024, 64])))
    assert not accepts(unit, call(tensor([1, 1024, 64]))), "size 1 is specialised"
    assert not accepts(unit, call(tensor([2, 1023, 64])))
    assert not accepts(unit, call(tensor([2, 8192, 64])))
    assert not accepts(unit, call(tensor([2, 1024, 65])))
    assert not accepts(unit, call(tensor([2, 1024])))


def test_one_symbol_is_one_size_throughout() -> None:
    """Inputs that were equal when the graph was traced must be equal again."""
    unit = dynamic(tensor(["s0", 64]), x=tensor(["s0"]))
    assert accepts(unit, call(tensor([7, 64]), x=tensor([7])))
    assert not accepts(unit, call(tensor([7, 64]), x=tensor([8])))


def test_strides_count_where_they_were_recorded() -> None:
    """One class of block is traced once per layout: a view is not the contiguous tensor."""
    unit = dynamic(tensor(["s0", "s1", 64], ["64*s1", 64, 1]))
    assert accepts(unit, call(tensor([2, 100, 64], [6400, 64, 1])))
    assert not accepts(unit, call(tensor([2, 100, 64], [36864, 64, 1])))
    assert not accepts(unit, call(tensor([2, 100, 64]))), "no strides, so nothing is proven"


@pytest.mark.parametrize(
    ("pattern", "value"),
    [(1, True), (True, 1), (1, 1.0), (1.0, 1), (None, 0), ("a", "b"), ("s0", 5), (None, False)],
)
def test_other_leaves_count_by_value_and_type(pattern: Any, value: Any) -> None:
    """A number is not a truth value; text in a leaf is never a symbol."""
    assert not accepts(dynamic({"v": pattern}), call({"v": value}))
    assert accepts(dynamic({"v": pattern}), call({"v": pattern}))


def test_structure_must_be_the_same() -> None:
    """Lists, mappings and names of arguments are part of the call."""
    unit = dynamic([tensor(["s0"])], cond={"a": {"v": 1}})
    assert accepts(unit, call([tensor([4])], cond={"a": {"v": 1}}))
    assert not accepts(unit, call([tensor([4]), tensor([4])], cond={"a": {"v": 1}}))
    assert not accepts(unit, call(tensor([4]), cond={"a": {"v": 1}}))
    assert not accepts(unit, call([tensor([4])], cond={"b": {"v": 1}}))


def test_inputs_of_a_graph_are_matched_like_a_call() -> None:
    """Units of repeated blocks are over the inputs of one graph, by source, and what else they fix by value."""
    unit = Unit(
        dynamic=True,
        signature=json.dumps(
            {"inputs": {"L['x']": tensor([1, "s0", 64], ["64*s0", 64, 1])}, "weights": "ab"}
        ),
        guards="(Eq(Mod(s0, 2), 0)) and (s0 <= 4096)",
        ranges=(("s0", 2, 4096),),
    )

    def graph(size: int, weights: str = "ab") -> str:
        return json.dumps(
            {"inputs": {"L['x']": tensor([1, size, 64], [64 * size, 64, 1])}, "weights": weights}
        )

    assert accepts(unit, graph(1024))
    assert not accepts(unit, graph(1023))
    assert not accepts(unit, graph(1024, weights="cd"))


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '{"args":[]}', "\ud800"])
def test_signature_that_is_none_is_not_covered(text: str) -> None:
    """What cannot be read is unknown, and unknown is not covered."""
    assert not accepts(dynamic(tensor(["s0"])), text)
    assert not accepts(replace(dynamic(), signature=text), call(tensor([4])))


def test_range_of_a_symbol_that_is_not_bound_is_not_proven() -> None:
    """A range over something the inputs do not show cannot be checked."""
    assert not accepts(dynamic(tensor([4]), ranges=(("s0", 2, None),)), call(tensor([4])))


@given(shapes)
def test_label_round_trips(shape: Shape) -> None:
    """A label names a shape exactly, types of its variant included."""
    read = Shape.parse(shape.label)
    assert read == shape
    assert [type(value) for _, value in shape.variant] == [type(value) for _, value in read.variant]


def test_label_is_what_people_write() -> None:
    """Ordinary variants need no quotes."""
    assert Shape.of(1024, 768, 2, prompt="short", frames=17).label == "1024x768x2,frames=17,prompt=short"
    assert Shape.of(512, 512, 1, cfg="7") == Shape.parse('512x512x1,cfg="7"')
    assert Shape.of(512, 512, 1, cfg=7) == Shape.parse(" 512x512x1,cfg=7 ")


@pytest.mark.parametrize(
    "text", ["", "512", "512x512", "0x512x1", "512x512x1,", "512x512x1,=1", "512x512x1,a=1,a=2"]
)
def test_label_that_is_none_is_refused(text: str) -> None:
    """The user is told what a label looks like."""
    with pytest.raises(ConfigurationError):
        Shape.parse(text)


@pytest.mark.parametrize(
    "sizes", [(0, 1, 1), (-1, 1, 1), (1, 1, True), (1.0, 1, 1), ("1", 1, 1), (10**7, 1, 1)]
)
def test_sizes_are_positive_integers(sizes: Any) -> None:
    """A size that no image can have is refused where it is given."""
    with pytest.raises(ConfigurationError):
        Shape(*sizes)


@pytest.mark.parametrize("value", [b"x", [1], float("nan"), float("inf"), "a,b"])
def test_variant_is_scalar(value: Any) -> None:
    """A variant must survive being written as a label."""
    with pytest.raises(ConfigurationError):
        Shape.of(1, 1, 1, x=value)


def test_shapes_sort_by_size() -> None:
    """Lists of shapes read from small to large."""
    drawn = [
        Shape.of(1024, 1024, 1),
        Shape.of(512, 512, 2),
        Shape.of(512, 512, 1, frames=2),
        Shape.of(512, 512, 1),
    ]
    assert [one.label for one in sorted(drawn)] == [
        "512x512x1",
        "512x512x1,frames=2",
        "512x512x2",
        "1024x1024x1",
    ]


def test_shape_is_covered_if_one_row_has_all_its_units() -> None:
    """A generation that runs two kinds of blocks needs both."""
    one, two = Unit(dynamic=False, signature="1"), Unit(dynamic=False, signature="2")
    shape = Shape.of(512, 512, 1)
    row = ShapeRow(shape, (one.id, two.id))
    assert Coverage((one, two), (row,)).covers(shape)
    assert not Coverage((one,), (row,)).covers(shape)
    assert not Coverage((one, two), (row,)).covers(Shape.of(512, 512, 2))
    assert Coverage((one,), (row, ShapeRow(shape, (one.id,)))).covers(shape)
    assert not Coverage((one,), (ShapeRow(shape, ()),)).covers(shape)


def test_covering_lists_static_units_first() -> None:
    """The most specific code for a call comes first."""
    static, loose = Unit(dynamic=False, signature=call(tensor([4]))), dynamic(tensor(["s0"]))
    assert [static, loose] == Coverage((loose, static)).covering(call(tensor([4])))
    assert [loose] == Coverage((loose, static)).covering(call(tensor([5])))


def test_seconds_of_a_warm_run_do_not_replace_the_cold_ones() -> None:
    """Zero means not measured; of measured ones the smallest is claimed."""
    unit = Unit(dynamic=False, signature="1", seconds=86.5)
    merged = Coverage((unit, replace(unit, seconds=0.0), replace(unit, seconds=90.0)))
    assert [one.seconds for one in merged.units] == [86.5]


def test_unit_with_other_needs_is_an_alternative() -> None:
    """Hosts with other compilers need other kernels for the same unit, and both must stay covered."""
    unit = Unit(dynamic=False, signature="1", needs=("kernel:" + "1" * 64,))
    other = replace(unit, needs=("kernel:" + "2" * 64,))
    assert unit.id == other.id
    assert len(merge(Coverage((unit,)), Coverage((other,))).units) == 2


def test_unsorted_needs_are_refused() -> None:
    """Equal needs must be equal values."""
    with pytest.raises(ConfigurationError):
        Coverage((Unit(dynamic=False, signature="1", needs=("b", "a")),))


@given(coverages(), coverages(), coverages())
def test_merge_is_a_union(first: Coverage, second: Coverage, third: Coverage) -> None:
    """Merging is commutative, associative and idempotent, and loses nothing."""
    assert merge(first, second) == merge(second, first)
    assert merge(merge(first, second), third) == merge(first, merge(second, third))
    assert first == merge(first, first)
    merged = merge(first, second)
    assert {unit.id for unit in first.units} <= merged.unit_ids
    assert set(first.shapes) <= set(merged.shapes)


@given(st.permutations([Shape.of(1, 1, 1, x=value) for value in (1, 1.0, True, "1", "true", None)]))
def test_variants_that_python_thinks_equal_stay_apart(drawn: list[Shape]) -> None:
    """1, 1.0 and true are different variants, in whatever order they come."""
    rows = Coverage(shapes=tuple(ShapeRow(shape, ("0" * 64,)) for shape in drawn)).shapes
    assert [row.shape.label.partition(",")[2] for row in rows] == [
        'x="1"',
        'x="true"',
        "x=1",
        "x=1.0",
        "x=null",
        "x=true",
    ]


@given(
    st.lists(st.sampled_from(("s0", "s1", 4, "2*s0")), min_size=1, max_size=4),
    st.integers(2, 99),
    st.integers(2, 99),
)
def test_dynamic_unit_accepts_exactly_its_own_instances(sizes: list[Any], first: int, second: int) -> None:
    """Every call that follows the pattern is covered, and one that differs in a single size of it is not."""
    known = {"s0": first, "s1": second, "2*s0": 2 * first}
    # An expression is decided only where its symbol is bound by a size of its own.
    pattern = [{"t": ["s0", "s1", *sizes], "dtype": "f"}]
    unit = Unit(True, canonical.dumps(pattern).decode())
    call = [first, second, *(known.get(size, size) for size in sizes)]
    assert accepts(unit, canonical.dumps([{"t": call, "dtype": "f"}]).decode())
    for place in range(2, len(call)):
        other = [*call[:place], call[place] + 1, *call[place + 1 :]]
        assert not accepts(unit, canonical.dumps([{"t": other, "dtype": "f"}]).decode())
