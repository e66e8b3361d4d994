"""A call's signature tells apart what compiled code may tell apart, and a graph's accepts what the graph accepts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cachekit.bundle import Unit, accepts
from cachekit.runtime import torch_private
from cachekit.runtime.backend import Graph
from cachekit.runtime.backend import _describe as describe
from cachekit.runtime.profile import Needs
from cachekit.runtime.signature import call_key, call_signature, graph_signature

Call = tuple[list[Any], dict[str, Any]]


def key(*args: Any, **kwargs: Any) -> Any:
    """The key of one call."""
    return call_key(args, kwargs, torch.Tensor)


def signature(*args: Any, **kwargs: Any) -> str:
    """The signature of one call."""
    return call_signature(args, kwargs, torch.Tensor, module="unet")


# --- calls ---------------------------------------------------------------------------------------------------------

_LAYOUTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda tensor: tensor,
    lambda tensor: tensor.t() if tensor.ndim == 2 else tensor,
    lambda tensor: tensor.expand(2, *tensor.shape),
    lambda tensor: tensor[..., ::2] if tensor.ndim else tensor,
)
tensors = st.builds(
    lambda shape, dtype, layout: layout(torch.empty(shape, dtype=dtype)),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from((torch.float32, torch.bfloat16, torch.int64)),
    st.sampled_from(_LAYOUTS),
)
# 0.0 only: torch's guards take -0.0 for it. NaN is no key, as it does not equal itself.
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 2),
    st.sampled_from((0.0, 1.0, 1.5, float("inf"))),
    st.sampled_from(("", "1", "None", "torch.float32")),
)
leaves = st.one_of(tensors, scalars, st.sampled_from((torch.float32, object())))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.lists(inner, max_size=2).map(tuple),
        st.dictionaries(st.sampled_from(("v", "t", "text_embeds")), inner, max_size=2),
    ),
    max_leaves=4,
)
calls = st.tuples(
    st.lists(values, max_size=2), st.dictionaries(st.sampled_from(("timestep", "return_dict")), values)
)


@given(calls, calls)
def test_keys_are_equal_exactly_if_signatures_are(first: Call, second: Call) -> None:
    """The cheap key and the text that is kept tell the same calls apart."""
    keys = [key(*args, **kwargs) for args, kwargs in (first, second)]
    texts = [signature(*args, **kwargs) for args, kwargs in (first, second)]

    assert (keys[0] == keys[1]) == (texts[0] == texts[1])
    assert hash(keys[0]) == hash(keys[1]) or keys[0] != keys[1]


@given(calls)
def test_a_call_made_again_has_its_key_and_signature(call: Call) -> None:
    """Other tensors of the same kind, and keywords in another order, are the same call."""
    args, kwargs = call
    again = [_copied(value) for value in args]
    turned = {name: _copied(kwargs[name]) for name in reversed(kwargs)}

    assert key(*args, **kwargs) == key(*again, **turned)
    assert signature(*args, **kwargs) == signature(*again, **turned)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    if isinstance(value, dict):
        return {name: _copied(value[name]) for name in reversed(value)}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return value


@given(calls)
def test_a_signature_is_canonical_json(call: Call) -> None:
    """It can be read back, with sorted names and no spaces, and names the denoiser."""
    text = signature(*call[0], **call[1])

    read = json.loads(text)
    assert read["module"] == "unet"
    assert len(read["args"]) == len(call[0])
    assert json.dumps(read, sort_keys=True, separators=(",", ":")) == text


@pytest.mark.parametrize(
    "other",
    [
        torch.empty(4, 8),
        torch.empty(2, 4, 8, dtype=torch.float16),
        torch.empty(8, 4, 2).permute(2, 1, 0),
        torch.empty(2, 4, 8, device="meta"),
    ],
    ids=["shape", "dtype", "strides", "device"],
)
def test_tensors_differ_by_their_metadata(other: torch.Tensor) -> None:
    """Shape, dtype, strides and device each make another call."""
    tensor = torch.empty(2, 4, 8)

    assert key(tensor) != key(other)
    assert signature(tensor) != signature(other)


def test_tensors_do_not_differ_by_their_contents() -> None:
    """What is in a tensor, and whether it is a parameter, is not what it was compiled for."""
    ones = torch.ones(2, 3)

    assert key(ones) == key(torch.zeros(2, 3)) == key(torch.nn.Parameter(ones))
    assert signature(ones) == signature(torch.zeros(2, 3))


def test_positional_and_keyword_calls_differ() -> None:
    """Passing an input by name is another call, as it is to Dynamo."""
    assert key(1) != key(x=1)
    assert signature(1) != signature(x=1)


def test_the_denoiser_is_part_of_the_signature() -> None:
    """Two denoisers of one pipeline do not share units."""
    assert call_signature([1], {}, torch.Tensor, module="a") != call_signature(
        [1], {}, torch.Tensor, module="b"
    )


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, 4).to_sparse(),
        lambda: torch.ones(4, 4).to_sparse_csr(),
        lambda: torch.ones(4, 4).to_mkldnn(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    ],
    ids=["sparse", "csr", "mkldnn", "nested", "jagged"],
)
def test_tensors_without_strides_have_signatures(make: Callable[[], torch.Tensor]) -> None:
    """A tensor that cannot say its sizes or strides is told apart by what it is, and nothing is raised."""
    odd = make()

    assert key(odd) == key(make())
    assert isinstance(hash(key(odd)), int)
    assert json.loads(signature(odd))
    assert key(odd) != key(torch.ones(3, 4))
    assert signature(odd) != signature(torch.ones(3, 4))


# --- graphs --------------------------------------------------------------------------------------------------------


class Symbolic:
    """Stands for a fake tensor: sizes are numbers, or expressions over symbols as torch prints them."""

    dtype = torch.float32
    device = torch.device("cpu")
    layout = torch.strided

    def __init__(self, *shape: int | str, stride: tuple[int | str, ...] | None = None) -> None:
        self.shape = shape
        self._stride = stride or (1,) * len(shape)

    def stride(self) -> tuple[int | str, ...]:
        """Strides, as a tensor has them."""
        return self._stride


def graph(
    *inputs: Symbolic, guards: tuple[str, ...] = (), ranges: Mapping[str, tuple[int, int | None]] = {}
) -> Unit:
    """The unit of a graph with inputs x0, x1, ..."""
    found = graph_signature([(f"L['x{n}']", value) for n, value in enumerate(inputs)], guards, Symbolic)
    renamed = sorted((found.symbols[name], low, high) for name, (low, high) in ranges.items())
    return Unit(True, found.text, guards=found.guards, ranges=tuple(renamed))


def called(*shapes: tuple[int, ...]) -> str:
    """The signature of real inputs with unit strides."""
    return graph(*(Symbolic(*shape) for shape in shapes)).signature


symbols = st.permutations(["s0", "s1", "s77", "s27", "u0", "zf9"])


@given(symbols)
def test_torch_s_names_of_symbols_do_not_matter(names: list[str]) -> None:
    """However torch numbered its symbols, the same graph has the same signature, guards and ranges."""
    a, b = names[:2]

    found = graph(
        Symbolic(a, b, 8, stride=(f"8*{b}", 8, 1)),
        Symbolic(a),
        guards=(f"Eq(Mod({b}, 2), 0)", f"{a} < {b}"),
        ranges={a: (2, None), b: (2, 64)},
    )

    assert found.guards == "(Eq(Mod(s1, 2), 0)) and (s0 < s1)"
    assert found.ranges == (("s0", 2, None), ("s1", 2, 64))
    assert json.loads(found.signature)["inputs"]["L['x0']"]["t"] == ["s0", "s1", 8]
    assert json.loads(found.signature)["inputs"]["L['x0']"]["stride"] == ["8*s1", 8, 1]


@given(st.permutations(["s0 < 9", "s1 < 9", "Ne(s0, s1)"]))
def test_the_order_of_guards_does_not_matter(guards: list[str]) -> None:
    """Guards are a set, however often torch noted one."""
    assert graph(Symbolic("s0", "s1"), guards=(*guards, guards[0])) == graph(
        Symbolic("s0", "s1"), guards=("Ne(s0, s1)", "s0 < 9", "s1 < 9")
    )


def test_guards_over_sizes_that_are_not_shown_keep_a_unit_from_covering() -> None:
    """A guard over a size that no input shows cannot be checked, and what cannot be checked is not covered."""
    found = graph_signature([("L['x']", Symbolic("s5", 8))], ["s5 < 9", "s5 < s27"], Symbolic)
    unit = Unit(True, found.text, guards=found.guards)

    assert found.guards == "(s0 < 9) and (s0 < s1)"
    assert not accepts(unit, graph_signature([("L['x']", Symbolic("4", 8))], [], Symbolic).text)


def test_guards_over_what_is_fixed_are_numbers_or_nothing() -> None:
    """Sizes that torch specialised count as numbers; floats that a module holds are the fingerprint's business."""
    guards = ["Eq(s53, 8)", "Eq(zf9, 0.5)", "s5 < s53"]

    found = graph_signature([("L['x']", Symbolic("s5", 8))], guards, Symbolic, fixed={"s53": 8})

    assert found.guards == "(s0 < 8)"


def test_specialised_sizes_are_numbers() -> None:
    """A symbol that torch found to be a number prints as one, and is compared as one."""
    text = graph(Symbolic("8", "s3")).signature

    assert json.loads(text)["inputs"]["L['x0']"]["t"] == [8, "s0"]


def test_weights_count_as_one_digest() -> None:
    """Inputs that are parameters of the module are told apart by a digest, in any number."""

    def text(rows: int) -> str:
        inputs = [("L['x']", Symbolic(2)), ("L['self']._parameters['weight']", Symbolic(rows, 8))]
        return graph_signature(inputs, [], Symbolic).text

    assert text(8) == text(8)
    assert text(8) != text(16)
    assert json.loads(text(8))["inputs"].keys() == {"L['x']"}


def test_inputs_that_are_no_tensors_do_not_count() -> None:
    """Sizes come in beside their tensors as inputs of their own."""
    with_size = [("L['x'].size()[0]", "s0"), ("L['x']", Symbolic("s0"))]

    assert graph_signature(with_size, [], Symbolic) == graph_signature(with_size[1:], [], Symbolic)


@given(st.integers(1, 20), st.integers(1, 20))
def test_a_unit_accepts_the_sizes_that_guards_and_ranges_allow(rows: int, columns: int) -> None:
    """What the unit of a graph says to real sizes is what its guards say."""
    unit = graph(
        Symbolic("s7", "s3"),
        Symbolic("s3", "16*s7"),
        guards=("Eq(Mod(s7, 2), 0)", "Ne(s3, 5)"),
        ranges={"s7": (2, None), "s3": (2, 12)},
    )

    allowed = rows % 2 == 0 and columns not in (1, 5) and columns <= 12
    assert accepts(unit, called((rows, columns), (columns, 16 * rows))) == allowed
    assert not accepts(unit, called((rows, columns), (columns + 1, 16 * rows)))
    assert not accepts(unit, called((rows, columns), (columns, 16 * rows + 1)))


class Paired(torch.nn.Module):
    """Branches on its sizes, so that it compiles into several graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, 8))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Add pairs of rows, or multiply."""
        if x.shape[0] % 2 == 0:
            return x[::2] @ self.weight + x[1::2] + y.sum()
        return x @ self.weight + y.sum() if x.shape[0] < y.shape[0] else x @ self.weight - y.sum()


def test_units_of_real_graphs_accept_what_dynamo_accepts(compiling: object) -> None:
    """Over many sizes, a call that some unit accepts never compiles; few others are left undecided."""
    units: list[Unit] = []
    module = Paired()
    weight = ("L['self']._parameters['weight']", module.weight)

    def backend(compiled: Any, inputs: Any) -> Callable[..., Any]:
        record = Graph(None, Needs(), None, {}, 0.0)  # type: ignore[arg-type]
        describe(record, torch_private.placeholders(compiled))
        assert record.signature is not None
        ranges = tuple(sorted((name, low, high) for name, (low, high) in record.ranges.items()))
        units.append(Unit(True, record.signature.text, guards=record.signature.guards, ranges=ranges))
        forward: Callable[..., Any] = compiled.forward
        return forward

    module.compile(backend=backend, dynamic=True)
    wrong, missed = [], 0
    for rows, others in [
        (4, 9),
        (6, 9),
        (6, 2),
        (3, 9),
        (5, 9),
        (5, 3),
        (7, 2),
        (9, 10),
        (1, 4),
        (2, 4),
        (8, 1),
    ]:
        x, y = torch.ones(rows, 8), torch.ones(others, 8)
        inputs = [("L['x']", x), ("L['y']", y), weight]
        text = graph_signature(inputs, [], torch.Tensor).text
        covered = any(accepts(unit, text) for unit in units)
        before = len(units)
        with torch.no_grad():
            module(x, y)
        if covered and len(units) > before:
            wrong.append((rows, others))
        missed += not covered and len(units) == before

    assert not wrong, units
    assert missed < 4, "units that decide nothing are of no use"
    assert len(units) > 3


def test_what_autograd_records_is_another_unit() -> None:
    """Grad mode is part of a call's and of a graph's signature: torch compiles and looks up another graph for it."""
    x = torch.ones(2)

    plain = call_signature((x,), {}, torch.Tensor, module="m")
    graph = graph_signature([("L['x']", x)], [], torch.Tensor)

    assert plain == call_signature((x,), {}, torch.Tensor, module="m", grad=False)
    assert plain != call_signature((x,), {}, torch.Tensor, module="m", grad=True)
    assert graph.text != graph_signature([("L['x']", x)], [], torch.Tensor, grad=True).text
