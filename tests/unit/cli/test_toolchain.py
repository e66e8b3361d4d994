"""`cachekit toolchain`."""

from __future__ import annotations

import pytest

from tests.unit.cli.homes import run


def test_the_json_is_what_a_planner_reads() -> None:
    """`Toolchain.from_json` gives back what was captured here."""
    torch = pytest.importorskip("torch", reason="a toolchain is captured from torch")
    from cachekit.identity import Toolchain

    answer = run("toolchain", "--json")

    assert answer.code == 0
    assert answer.json["torch"]["version"] == str(torch.__version__)
    assert Toolchain.from_json(answer.out) == Toolchain.current()


def test_people_see_the_components() -> None:
    """One line per component."""
    pytest.importorskip("torch", reason="a toolchain is captured from torch")

    assert "cpu.vector_isa" in run("toolchain").out


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner's machine needs no torch, but this verb does."""
    monkeypatch.setattr("cachekit.cli.toolchain.find_spec", lambda name: None)

    answer = run("toolchain", "--json")

    assert answer.code == 2
    assert answer.json["error"]["code"] == "unsupported"
    assert "torch-cachekit[torch]" in answer.err
