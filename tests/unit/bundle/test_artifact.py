from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable

import pytest

from cachekit.bundle import (
    KINDS,
    Artifact,
    Reference,
    guards_of,
    has_cpp,
    megacache,
    partners_of,
    references_of,
    requires,
    unmet,
)
from cachekit.errors import ConfigurationError, CorruptError
from tests.unit.bundle.strategies import torch_data, torch_key


@pytest.mark.parametrize("kind", KINDS)
def test_key_of_its_kind_is_accepted(kind: str) -> None:
    """Each kind takes the keys that its producer makes."""
    assert torch_key(kind, 1) == Artifact(kind, torch_key(kind, 1), b"").key


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "key", ["", "../../x", "/etc/passwd", "ab/../../x", "f" * 51, "a\n", "nul\0", "ab\\cd"]
)
def test_key_that_could_name_another_file_is_refused(kind: str, key: str) -> None:
    """A key that does not look like its kind never becomes an artifact, and so never a path."""
    with pytest.raises(CorruptError):
        Artifact(kind, key, b"")
    with pytest.raises(CorruptError):
        Artifact(kind, torch_key(kind, 1) + "\n", b"")


def test_unknown_kind_is_refused() -> None:
    """A kind that this release does not know is not stored under any key."""
    with pytest.raises(CorruptError, match="unknown artifact kind"):
        Artifact("pgo", "job:None:", b"")


def test_probe_answer_is_a_kernel() -> None:
    """What a compiler probe found out travels beside the kernels, under its own pattern."""
    assert Artifact("kernel", "0" * 64 + ".isa", b"1").kind == "kernel"


def test_identity_id_is_stable() -> None:
    """Documents of older releases refer to artifacts by this id, so it must never change."""
    key = torch_key("inductor", 1)
    artifact = Artifact("inductor", key, b"x", guards="2 <= s0", requires=(("arch", "x86_64"),))
    text = f'["inductor","{key}","2 <= s0",[["arch","x86_64"]]]'
    assert f"inductor:{hashlib.sha256(text.encode()).hexdigest()}" == artifact.identity.id


def test_identity_tells_guards_and_requirements_apart() -> None:
    """Two artifacts of one key are different things if their guards or requirements differ."""
    key = torch_key("inductor", 1)
    variants = [
        Artifact("inductor", key, b"x"),
        Artifact("inductor", key, b"x", guards="2 <= s0"),
        Artifact("inductor", key, b"x", requires=(("arch", "x86_64"),)),
        Artifact("inductor", key, b"x", requires=(("arch", "aarch64"),)),
    ]
    assert len({artifact.identity.id for artifact in variants}) == 4


def test_repr_does_not_show_the_bytes() -> None:
    """An artifact in a log or traceback is one line, whatever it holds."""
    assert "secret" not in repr(Artifact("inductor", torch_key("inductor", 1), b"secret"))


def test_requirements_are_sorted_text() -> None:
    """Requirements compare equal however they were gathered, and only text can be one."""
    assert requires({"threads": "4", "arch": "x86_64"}) == (("arch", "x86_64"), ("threads", "4"))
    with pytest.raises(ConfigurationError, match="threads"):
        requires({"threads": 4})  # type: ignore[dict-item]
    with pytest.raises(CorruptError):
        Artifact("inductor", torch_key("inductor", 1), b"", requires=(("b", "1"), ("a", "1")))


def test_unmet_names_what_differs_and_what_is_missing() -> None:
    """A requirement that the host does not mention is as unmet as one it contradicts."""
    wanted = requires({"arch": "x86_64", "vector_isa": "avx512", "threads": "4"})
    found = unmet(wanted, {"arch": "x86_64", "vector_isa": "avx2"})
    assert [tuple(one) for one in found] == [("threads", "4", None), ("vector_isa", "avx512", "avx2")]
    assert unmet((), {}) == ()


def test_guards_are_read_from_a_memo_reference() -> None:
    """Guards that pickle wrote as a reference to an earlier equal object are found all the same."""
    text = "2 <= L['t0']"
    data = pickle.dumps({"first": text, "guards_expr": text}, protocol=4)
    assert text == guards_of("inductor", data)


def test_guards_of_the_outer_object_win_over_a_nested_one() -> None:
    """A bundled aot_autograd artifact holds an inductor one inside; its own guards come last."""
    data = pickle.dumps({"CompiledFxGraph": {"guards_expr": "inner"}, "guards_expr": "outer"}, protocol=4)
    assert guards_of("aot_autograd", data) == "outer"


def test_long_guards_are_read() -> None:
    """Guards longer than 255 bytes are pickled with another opcode."""
    text = " and ".join(f"{n} <= L['t{n}']" for n in range(100))
    assert text == guards_of("inductor", torch_data("inductor", text, b""))


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x04N.", b"not a pickle", b"\x80\x04\x8c\x0bguards_expr\x94\x8c\xff"]
)
def test_artifact_without_guards_is_corrupt(data: bytes) -> None:
    """An artifact whose guards cannot be read could shadow another one, so it is not taken."""
    with pytest.raises(CorruptError):
        guards_of("inductor", data)


def test_autotune_has_no_guards() -> None:
    """Kinds that are not pickled graphs have no guards, whatever their bytes are."""
    assert "" == guards_of("autotune", b"{}") == guards_of("kernel", b"\x7fELF")


def test_references_pair_each_partner_with_its_guards() -> None:
    """Forward and backward are looked up under their own guards."""
    forward, backward = torch_key("inductor", 1), torch_key("inductor", 2)
    data = torch_data("aot_autograd", "s", b"", [(forward, "a"), (backward, "")])
    assert {Reference(forward, "a"), Reference(backward, "")} == references_of(data)
    assert {forward, backward} == partners_of(data)
    assert set() == references_of(pickle.dumps({"guards_expr": None}))


def test_reference_round_trips_as_text() -> None:
    """Entries keep references as text."""
    for reference in (Reference("f" * 52, ""), Reference("f" * 52, "2 <= L['t0'] and x")):
        assert reference == Reference.parse(str(reference))


@pytest.mark.slow
def test_real_training_artifact_names_both_graphs(compiled: Callable[[str], bytes]) -> None:
    """An artifact with a backward graph names two inductor artifacts of the same bundle."""
    artifacts = megacache.decode(compiled("double"))
    inductor = {artifact.key for artifact in artifacts if artifact.kind == "inductor"}
    partners = [partners_of(artifact.data) for artifact in artifacts if artifact.kind == "aot_autograd"]
    assert sorted(map(len, partners)) == [1, 1, 2]
    assert inductor == frozenset().union(*partners)


@pytest.mark.slow
def test_real_cpu_graphs_contain_cpp(compiled: Callable[[str], bytes]) -> None:
    """CPU kernels are C++; a graph that only calls a library is not, though its configuration mentions C++."""
    found = {
        has_cpp(artifact.data)
        for artifact in megacache.decode(compiled("double"))
        if artifact.kind == "inductor"
    }
    assert True in found


def test_real_cuda_graphs_contain_cpp_only_where_they_have_a_cpu_kernel(cuda: bytes) -> None:
    """Of the recorded CUDA graphs one moves a CPU scalar, and only that one belongs to a kind of CPU."""
    found = [has_cpp(artifact.data) for artifact in megacache.decode(cuda) if artifact.kind == "inductor"]
    assert found.count(True) == 1
    assert len(found) == 7


def test_artifact_of_unknown_layout_counts_as_cpp() -> None:
    """Where the source cannot be found, any mention of C++ makes an artifact belong to its CPU."""
    assert has_cpp(b"no source here, but async_compile.cpp_pybinding")
    assert not has_cpp(
        pickle.dumps({"source_code": "async_compile.triton", "config": "async_compile.cpp"}, protocol=4)
    )
