"""`cachekit demo` as a verb; what it runs is tested with the demonstration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.homes import run


@pytest.fixture(autouse=True)
def _libraries() -> None:
    """It is refused at once where a library is missing."""
    for name in ("torch", "diffusers", "transformers", "gguf", "accelerate"):
        pytest.importorskip(name, reason="the demonstration needs it")


def test_an_unknown_pipeline_is_status_2_and_the_known_ones_are_named() -> None:
    """Nobody has to look up the names."""
    answer = run("demo", "--pipeline", "dalle", "--json")

    assert answer.code == 2
    assert "sdxl" in answer.json["error"]["message"]


def test_a_folder_that_holds_something_is_status_2(tmp_path: Path) -> None:
    """What lies there could make the cold start a warm one."""
    (tmp_path / "something").touch()

    answer = run("demo", "--dir", str(tmp_path))

    assert answer.code == 2
    assert str(tmp_path) in answer.err


def test_the_status_is_that_of_the_demonstration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Options reach it, and 1 means that something was not warm."""
    asked: list[object] = []
    monkeypatch.setattr("cachekit.demo.main.run", lambda **options: asked.append(options) or 1)

    answer = run("demo", "--dir", str(tmp_path), "--keep", "--pipeline", "a", "--pipeline", "b", "--json")

    assert answer.code == 1
    assert asked == [{"directory": tmp_path, "keep": True, "pipelines": ["a", "b"], "as_json": True}]
