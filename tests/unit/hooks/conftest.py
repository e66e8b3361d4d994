"""What these tests share: compiles in a folder of their own, and sessions that are closed in the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import cachekit
from cachekit.runtime import kernels, process, session

Attach = Callable[..., Any]


@pytest.fixture
def compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let real compiles start from nothing, in the folder that is given; Dynamo forgets them afterwards."""
    folder = tmp_path / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    torch._dynamo.reset()
    yield folder
    torch._dynamo.reset()


@pytest.fixture
def attach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiling: Path) -> Iterator[Attach]:
    """``cachekit.attach`` with a folder of this test's own; nothing is left of its sessions."""
    monkeypatch.setattr(session, "shared", process.SharedState())
    monkeypatch.setattr(kernels, "_answers", {})
    monkeypatch.setenv("CACHEKIT_DIR", str(tmp_path / "cachekit"))
    made: list[Any] = []

    def attached(target: Any, **options: Any) -> Any:
        made.append(cachekit.attach(target, **options))
        return made[-1]

    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    before = {name: os.environ.get(name) for name in names}
    yield attached
    for one in reversed(made):
        one.close()
    assert {name: os.environ.get(name) for name in names} == before
