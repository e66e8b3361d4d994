"""What these tests share: compiles in a folder of their own, a fresh shared state, and artifacts that torch wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cachekit.bundle import Artifact
from cachekit.runtime import kernels, process, session
from tests.unit.runtime.helpers import fixture_artifacts


@pytest.fixture
def compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let real compiles start from nothing, in the folder that is given; Dynamo forgets them afterwards."""
    folder = tmp_path / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    torch._dynamo.reset()
    yield folder
    torch._dynamo.reset()


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[process.SharedState]:
    """Give sessions a shared state of this test's own, and check that nothing of it is left behind."""
    state = process.SharedState()
    monkeypatch.setattr(process, "shared", state)
    monkeypatch.setattr(session, "shared", state)
    before = {name: os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    yield state
    assert {name: os.environ.get(name) for name in before} == before


@pytest.fixture
def no_answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Start without known ISA probes; what the test learns stays in the dictionary that is given."""
    answers: dict[str, bool] = {}
    monkeypatch.setattr(kernels, "_answers", answers)
    monkeypatch.setattr(kernels, "_learned", {})
    return answers


@pytest.fixture(scope="session")
def artifacts() -> tuple[Artifact, ...]:
    """Real artifacts of torch 2.13: two static compiles, each an inductor and an aot_autograd artifact."""
    return fixture_artifacts("double")
