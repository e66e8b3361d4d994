"""Starts in processes of their own: a bare environment, one result, and failures that say why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachekit.demo import children
from cachekit.demo.children import Failure, run

BUILD_NOTHING = json.dumps({"build": [], "folder": "models"})


def ignore(doing: str) -> None:
    """Nobody wants to know."""


def running(mark: str) -> list[str]:
    """Command lines of living processes that contain ``mark``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace")
        except OSError:
            continue  # it ended while we looked
        if mark in command:
            found.append(command)
    return found


def test_a_child_gives_back_its_result(tmp_path: Path) -> None:
    """A child that ends well returns its one result."""
    assert run(BUILD_NOTHING, folder=tmp_path / "child", doing=ignore) == {}


def test_a_child_tells_what_it_does(tmp_path: Path) -> None:
    """The parent hears what the child is at while it works, and the pipeline is there afterwards."""
    heard: list[str] = []
    spec = json.dumps({"build": ["sdxl"], "folder": str(tmp_path / "models")})

    assert run(spec, folder=tmp_path / "child", doing=heard.append) == {}

    assert heard == ["making sdxl"]
    assert (tmp_path / "models" / "sdxl" / "model_index.json").exists()


def test_a_failing_child_shows_the_end_of_its_standard_error(tmp_path: Path) -> None:
    """A child that raises is a failure with its exit status and traceback, at most so many lines."""
    spec = json.dumps({"process": "A", "name": "no such", "folder": "", "cachekit": "", "sizes": [[64, 64]]})

    failure = run(spec, folder=tmp_path / "child", doing=ignore)

    assert isinstance(failure, Failure)
    assert failure.why == "exit status 1"
    assert "StopIteration" in failure.stderr
    assert 0 < len(failure.stderr.splitlines()) <= children.STDERR_LINES


def test_a_child_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that takes longer than it may is killed, and the failure says so."""
    monkeypatch.setattr(children, "TIMEOUT_S", 0.0)

    failure = run(BUILD_NOTHING, folder=tmp_path / "child", doing=ignore)

    assert isinstance(failure, Failure)
    assert failure.why == "killed after 0 s"


def test_no_child_outlives_the_parents_work(tmp_path: Path) -> None:
    """A parent that is interrupted while a child works takes it along."""

    def interrupted(doing: str) -> None:
        assert running(str(tmp_path))
        raise KeyboardInterrupt

    spec = json.dumps({"build": ["sdxl"], "folder": str(tmp_path / "models")})

    with pytest.raises(KeyboardInterrupt):
        run(spec, folder=tmp_path / "child", doing=interrupted)

    assert running(str(tmp_path)) == []


def test_nothing_is_warm_in_a_childs_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child has empty folders of its own, none of cachekit's settings, and all else as it was."""
    monkeypatch.setenv("CACHEKIT_MODE", "off")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere/warm")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")

    environment = children._environment(tmp_path)

    assert not [name for name in environment if name.startswith("CACHEKIT_")]
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR"):
        assert Path(environment[name]).parent == tmp_path
        assert list(Path(environment[name]).iterdir()) == []
    assert environment["OMP_NUM_THREADS"] == "2"


def test_headers_are_not_precompiled_where_torch_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without the openssl program, which torch hashes headers with, a child does without them."""
    name = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"
    for folder in ("with", "without", "children"):
        (tmp_path / folder).mkdir()
    (tmp_path / "with" / "openssl").touch(mode=0o755)
    (tmp_path / "children" / "1").mkdir()
    (tmp_path / "children" / "2").mkdir()

    monkeypatch.setenv("PATH", str(tmp_path / "with"))
    assert name not in children._environment(tmp_path / "children" / "1")

    monkeypatch.setenv("PATH", str(tmp_path / "without"))
    assert children._environment(tmp_path / "children" / "2")[name] == "0"
