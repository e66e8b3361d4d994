from __future__ import annotations

import importlib
import os
import pickle
import pickletools
import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachekit.bundle import Limits, megacache
from cachekit.bundle import scan as scan_module
from cachekit.bundle.scan import check, scan
from cachekit.errors import CachekitError, CorruptError, LimitError, TrustError


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def op(name: str) -> bytes:
    """Return an opcode by name."""
    return next(code.code for code in pickletools.opcodes if code.name == name).encode("latin-1")


def text(value: str) -> bytes:
    """Push text as pickle protocol 4 does."""
    return b"\x8c" + bytes([len(value)]) + value.encode()


def imports(module: str, name: str) -> bytes:
    """Push a global."""
    return text(module) + text(name) + op("STACK_GLOBAL")


def program(*steps: bytes) -> bytes:
    """Return a pickle of these steps."""
    return b"\x80\x04" + b"".join(steps) + b"."


GETATTR = imports("builtins", "getattr")
JIT = imports("triton.runtime.jit", "JITFunction") + op("EMPTY_TUPLE") + op("NEWOBJ")
LOAD = imports("torch.storage", "_load_from_bytes")


def test_recordings_of_every_minor_pass(recorded: dict[str, tuple[bytes, Any]]) -> None:
    """What torch wrote on CPU, in every minor, is accepted."""
    for data, _ in recorded.values():
        for artifact in megacache.decode(data):
            check(artifact.kind, artifact.data)
            assert "torch.utils._ordered_set.OrderedSet" in scan(artifact.data) or artifact.kind != "inductor"


def test_cuda_recordings_pass(cuda: bytes) -> None:
    """Triton kernels, autotuners, CUDA graphs and training graphs of a real GPU are accepted."""
    artifacts = megacache.decode(cuda)
    assert {"inductor", "aot_autograd", "autotune"} == {one.kind for one in artifacts}
    for artifact in artifacts:
        check(artifact.kind, artifact.data)
    seen = frozenset().union(*(scan(one.data) for one in artifacts if one.kind != "autotune"))
    assert {
        "builtins.getattr",
        "triton.runtime.jit.JITFunction",
        "torch.fx.graph_module.reduce_graph_module",
    } < seen


@pytest.mark.slow
def test_constant_tensors_of_the_installed_torch_pass(compiled: Callable[[str], bytes]) -> None:
    """A graph with a constant tensor carries a saved storage, which is followed and accepted."""
    data = [one.data for one in megacache.decode(compiled("single")) if one.kind == "inductor"]
    assert "torch.storage._load_from_bytes" in scan(data[0])
    assert "torch.FloatStorage" not in scan(data[0]), "the nested pickle is judged by its own rules"
    check("inductor", data[0])


@pytest.mark.parametrize(
    "payload",
    [
        Calls(os.system, "true"),
        Calls(subprocess.check_output, ["true"]),
        Calls(eval, "1"),
        Calls(exec, "1"),
        Calls(__import__, "os"),
        Calls(importlib.import_module, "os"),
        Calls(getattr, "x", "upper"),
        Calls(open, "/etc/passwd"),
        Calls(pickle.loads, b"N."),
        Calls(re.compile, "x"),
        Calls(str, "x"),
        [os.system],
        {"inside": (1, [Calls(os.system, "true")])},
    ],
)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_that_would_run_something_is_refused_by_name(payload: object, protocol: int) -> None:
    """The everyday attack is refused in every protocol, and the message names the global."""
    data = pickle.dumps({"guards_expr": None, "x": payload}, protocol=protocol)
    with pytest.raises(TrustError, match=r"imports|uses"):
        check("inductor", data)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch._inductor.codecache", "os.system"),
        ("torch._inductor.output_code", "os.system"),
        ("torch._inductor.output_code", "CompiledFxGraph.__init__.__globals__"),
        ("torch._inductor.codecache", "PyCodeCache"),
        ("torch._inductor.cpp_builder", "run_compile_cmd"),
        ("torch._inductor.runtime.compile_tasks", "_reload_python_module"),
        ("torch", "load"),
        ("torch", "hub.load"),
        ("torch", "float_power"),
        ("torch.serialization", "load"),
        ("torch._utils", "torch.load"),
        ("torch._utils", "torch.hub"),
        ("torch._tensor", "_rebuild_from_type_v2"),
        ("torch.fx.experimental.symbolic_shapes", "FloorDiv"),
        ("sympy.core.sympify", "sympify"),
        ("sympy.parsing.sympy_parser", "parse_expr"),
        ("builtins", "str"),
        ("builtins", "type"),
        ("builtins", "list.append"),
        ("functools", "partial"),
        ("operator", "attrgetter"),
        ("", ""),
        ("torch\nos", "system"),
        ("os", "system\n"),
    ],
)
def test_neighbours_of_allowed_globals_are_refused(module: str, name: str) -> None:
    """Functions, dotted names and other modules of torch are not reachable through the list."""
    with pytest.raises(TrustError):
        check("inductor", program(imports(module, name)))


def test_bound_methods_that_triton_holds_are_allowed() -> None:
    """getattr may make the bound methods that real autotuners carry, and no other."""
    check("inductor", program(GETATTR, JIT, text("create_binder"), op("TUPLE2"), op("REDUCE")))
    with pytest.raises(TrustError, match="getattr"):
        check("inductor", program(GETATTR, JIT, text("__class__"), op("TUPLE2"), op("REDUCE")))


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([GETATTR], id="alone"),
        pytest.param([GETATTR, op("EMPTY_TUPLE"), op("REDUCE")], id="no arguments"),
        pytest.param([op("EMPTY_LIST"), GETATTR, op("APPEND")], id="in a list"),
        pytest.param([GETATTR, op("TUPLE1")], id="in a tuple"),
        pytest.param(
            [imports("collections", "defaultdict"), GETATTR, op("TUPLE1"), op("REDUCE")], id="as an argument"
        ),
        pytest.param([op("EMPTY_DICT"), text("k"), GETATTR, op("SETITEM")], id="in a dict"),
        pytest.param([JIT, GETATTR, op("BUILD")], id="as state"),
        pytest.param([GETATTR, JIT, JIT, op("TUPLE2"), op("REDUCE")], id="computed name"),
        pytest.param([GETATTR, b"\x94", b"0", b"h\x00", op("TUPLE1")], id="through the memo"),
        pytest.param([LOAD, JIT, op("TUPLE1"), op("REDUCE")], id="load something computed"),
        pytest.param([LOAD, b"C\x03abc", op("TUPLE1"), op("REDUCE")], id="load something else"),
        pytest.param(
            [LOAD, b"\x96" + (3).to_bytes(8, "little") + b"abc", op("TUPLE1"), op("REDUCE")], id="bytearray"
        ),
        pytest.param([LOAD, b"C\x02PK", op("TUPLE1"), op("REDUCE")], id="load an archive"),
    ],
)
def test_guarded_globals_have_one_use_only(steps: list[bytes]) -> None:
    """getattr and the storage loader cannot be handed on, stored, or called in another way."""
    with pytest.raises(TrustError):
        check("inductor", program(*steps))


def _storage(body: bytes) -> bytes:
    parts = [pickle.dumps(one, protocol=2) for one in (0x1950A86A20F9469CFC6C, 1001, {})]
    saved = b"".join(parts) + body + pickle.dumps([], protocol=2) + bytes(64)
    return program(LOAD, b"B" + len(saved).to_bytes(4, "little") + saved, op("TUPLE1"), op("REDUCE"))


STORAGE = b"\x80\x02(" + text("storage") + b"ctorch\nFloatStorage\n" + text("1") + text("cpu") + b"K@NtQ."


def test_saved_storage_is_followed() -> None:
    """A tensor's storage is a pickle in the pickle; it may name its type and nothing else."""
    check("inductor", _storage(STORAGE))
    for hostile in (b"\x80\x02cos\nsystem\n.", pickle.dumps(Calls(os.system, "true"), protocol=2)):
        with pytest.raises(TrustError):
            check("inductor", _storage(hostile))
    with pytest.raises(TrustError):
        check("inductor", _storage(b"\x80\x02ctorch\nFloatStorage\n" + op("EMPTY_TUPLE") + b"R."))


def test_storage_that_reaches_past_its_end_is_corrupt() -> None:
    """The nested pickles must lie inside the bytes that hold them."""
    saved = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
    data = program(LOAD, b"B" + len(saved).to_bytes(4, "little") + saved, op("TUPLE1"), op("REDUCE"))
    with pytest.raises(CachekitError):
        check("inductor", data)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("sympy.core.mul", "Mul"),
        ("torch.utils._sympy.functions", "FloorDiv"),
        ("sympy.logic.boolalg", "Not"),
        ("torch.fx.experimental.symbolic_shapes", "SymIntEqByExpr"),
    ],
)
def test_expressions_are_not_made_of_text(module: str, name: str) -> None:
    """sympy evaluates text that it is given, so expressions are built of numbers and expressions only."""
    symbol = imports("sympy.core.symbol", "Symbol") + text("s0") + op("TUPLE1") + op("NEWOBJ")
    target = imports(module, name)
    check("aot_autograd", program(target, symbol, b"K\x02", op("TUPLE2"), op("NEWOBJ")))
    evil = "__import__('os').system('true')"
    for argument in (
        text(evil),
        b"X" + (300).to_bytes(4, "little") + evil.ljust(300).encode(),
        b"]" + text(evil) + b"a",
        text(evil) + op("TUPLE1"),
        JIT,
    ):
        with pytest.raises(TrustError, match="not an expression"):
            check("aot_autograd", program(target, argument, b"K\x02", op("TUPLE2"), op("REDUCE")))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"N", id="no end"),
        pytest.param(b".", id="nothing"),
        pytest.param(b"NN.", id="two objects"),
        pytest.param(b"(.", id="a mark"),
        pytest.param(b"N.N", id="something after the end"),
        pytest.param(b"h\x00.", id="memo that was never stored"),
        pytest.param(b"\x94N.", id="memo of nothing"),
        pytest.param(b"(\x94N.", id="memo of a mark"),
        pytest.param(b"t.", id="no mark"),
        pytest.param(b"NR.", id="call of nothing"),
        pytest.param(b"NNR.", id="call of None"),
        pytest.param(b"N)R.", id="call of a value"),
        pytest.param(program(imports("builtins", "list"), b"]R"), id="call with a list"),
        pytest.param(b"NN\x93.", id="import of numbers"),
        pytest.param(b"]]\x93.", id="import of lists"),
        pytest.param(program(imports("builtins", "list"), b"}b"), id="change of a class"),
        pytest.param(program(text("x"), b"Na"), id="change of text"),
        pytest.param(b"K", id="operand cut short"),
        pytest.param(b"X\xff\xff\xff\x7fabc.", id="text too long"),
        pytest.param(b"\x8e" + b"\xff" * 8 + b".", id="bytes too long"),
        pytest.param(b"\x8b\xff\xff\xff\xff.", id="number too long"),
        pytest.param(b"cos\nsystem", id="global without an end"),
        pytest.param(b"c" + b"a" * 5000 + b"\nb\n.", id="long global"),
        pytest.param(b"\x8c\x01\xff\x8c\x01a\x93.", id="global that is not text"),
        pytest.param(b"I1\n.", id="text opcode"),
        pytest.param(b"V1\n.", id="text opcode for text"),
        pytest.param(b"(ios\nsystem\n.", id="INST"),
        pytest.param(b"\x82\x01.", id="EXT1"),
        pytest.param(b"P1\n.", id="PERSID"),
        pytest.param(b"NQ.", id="BINPERSID"),
        pytest.param(b"N2.", id="DUP"),
        pytest.param(b"\x97.", id="NEXT_BUFFER"),
    ],
)  # fmt: skip
def test_what_no_pickler_writes_is_corrupt(data: bytes) -> None:
    """The scan understands what it accepts: everything else is refused, not skipped."""
    with pytest.raises(CorruptError):
        check("inductor", data)


@given(st.binary(max_size=80))
def test_any_bytes_give_an_answer_or_our_error(data: bytes) -> None:
    """No foreign exception leaves the scan."""
    for run in (scan, lambda some: check("inductor", some)):
        try:
            run(data)
        except CachekitError:
            continue


@given(st.data())
def test_damaged_artifact_gives_an_answer_or_our_error(data: st.DataObject) -> None:
    """Bytes changed inside a real kind of pickle are judged like any others."""
    damaged = bytearray(_storage(STORAGE) + program(GETATTR, JIT, text("save"), op("TUPLE2"), op("REDUCE")))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        check("inductor", bytes(damaged))
    except CachekitError:
        return


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.frozensets(st.text())
    ),
    max_leaves=30,
)


@given(values, st.sampled_from([2, 4, 5]))
def test_plain_data_passes(value: Any, protocol: int) -> None:
    """Everything that pickles without naming anything is followed to its end, memo references included."""
    data = pickle.dumps([value, value], protocol=protocol)
    names = scan(data)
    assert names <= {"builtins.frozenset", "_codecs.encode", "__builtin__.frozenset", "__builtin__.bytes"}
    if not names:
        check("inductor", data)


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param(b"N" + b"\x94" * 5000 + b".", id="memo"),
        pytest.param(b"(" * 5000 + b".", id="marks"),
        pytest.param(b"N" + b"\x94h\x00\x86" * 5000, id="tuples of tuples"),
        pytest.param(b"]" * 5000, id="stack"),
    ],
)
def test_bombs_end_at_the_limit_of_opcodes(bomb: bytes) -> None:
    """Time and memory are bounded by a number of opcodes that no real artifact comes near."""
    with pytest.raises(LimitError):
        check("inductor", bomb, limits=Limits(max_opcodes=4000))


def test_limits_are_far_above_real_artifacts(cuda: bytes) -> None:
    """Real artifacts take a hundredth of the opcodes and tuples that are allowed."""
    limits = Limits(max_opcodes=10_000, max_tuples=10_000, max_tuple_depth=20)
    for artifact in megacache.decode(cuda):
        check(artifact.kind, artifact.data, limits=limits)


def test_large_payloads_are_stepped_over() -> None:
    """Cubins and weights cost nothing: neither time nor memory grows with them."""
    size = 50_000_000
    payload = program(b"B" + size.to_bytes(4, "little"), bytes(size))
    tracemalloc.start()
    started = time.process_time()
    try:
        check("inductor", payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 0.3
    assert peak < 1_000_000


def test_engine_may_allow_a_class_of_its_own() -> None:
    """A tensor subclass that an engine brings can be named."""
    data = program(imports("studio.tensors", "PackedTensor"))
    with pytest.raises(TrustError, match=r"studio\.tensors\.PackedTensor"):
        check("aot_autograd", data)
    check("aot_autograd", data, also={"studio.tensors.PackedTensor"})


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("autotune", b""),
        ("autotune", b"[]"),
        ("autotune", b"{"),
        ("autotune", b"\xff"),
        ("autotune", b"[" * 100_000),
        ("kernel", b"#!/bin/sh\n"),
        ("kernel", b"<script>"),
    ],
)
def test_other_kinds_must_look_like_themselves(kind: str, data: bytes) -> None:
    """Corrupt autotune entries make torch 2.9 fail in mid-compile; a kernel is an ELF library or a probe's answer."""
    with pytest.raises(CorruptError):
        check(kind, data)


def test_other_kinds_pass_as_themselves() -> None:
    """A configuration, a library and a probe's answer are accepted."""
    check("autotune", b'{"XBLOCK": 256, "num_warps": 4}')
    check("kernel", b"\x7fELF\x02\x01")
    check("kernel", b"1")


def test_kind_without_a_scan_is_refused() -> None:
    """Nothing is installed unscanned because nobody wrote a scan for it."""
    with pytest.raises(TrustError, match="program"):
        check("program", b"N.")


_HARMLESS = re.compile(
    r"(?:torch|triton|sympy|builtins|collections|inspect|enum|typing|typing_extensions|abc|types|contextlib|_thread|gguf|diffusers\.quantizers\.gguf)\b"
)


def test_list_lets_through_classes_of_torch_and_not_of_the_system() -> None:
    """What the patterns reach in the installed torch is its own, not what it imported to run processes."""
    import sympy
    import torch._dynamo
    import torch._inductor.output_code
    import torch._inductor.runtime.triton_heuristics  # noqa: F401

    reached = 0
    for module_name, name, value in _reached():
        reached += 1
        home = str(getattr(value, "__module__", None) or module_name)
        assert _HARMLESS.match(home), f"{module_name}.{name} is of {home}"
        if isinstance(value, type) and issubclass(value, sympy.Basic):
            assert scan_module._SYMBOLIC.match(module_name), f"{module_name}.{name} would evaluate text"
    assert reached > 200


def _reached() -> Iterator[tuple[str, str, Any]]:
    modules = [(name, module) for name, module in sorted(sys.modules.items()) if module is not None]
    for module_pattern, name_pattern in scan_module._RULES:
        for module_name, module in modules:
            if module_pattern.fullmatch(module_name):
                for name in filter(name_pattern.fullmatch, dir(module)):
                    yield module_name, name, getattr(module, name)
