"""What the file system says about a result of autotuning does not reach the engine while a session is open."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import pytest

from cachekit.runtime import torch_private, tuning


def test_a_result_that_cannot_be_kept_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither reading nor writing raises; the first warning names the path and the errno, and is the only one."""
    backend = torch_private.local_cache_backend()
    assert backend is not None, "this torch keeps results of autotuning in another way: see torch_private"
    (tmp_path / "file").touch()
    key = str(tmp_path / "file" / "x.best_config")

    with contextlib.ExitStack() as stack, caplog.at_level(logging.WARNING, "cachekit"):
        tuning.watch(stack)
        backend().put(key, b"{}")
        assert backend().get(key) is None
        backend().put(str(tmp_path / "y.best_config"), b"{}")
        assert backend().get(str(tmp_path / "y.best_config")) == b"{}"

    (record,) = caplog.records
    assert key in record.getMessage()
    assert "EEXIST" in record.getMessage() or "ENOTDIR" in record.getMessage()
    with pytest.raises(OSError, match=r"x\.best_config|file"):
        backend().put(key, b"{}")


def test_another_torch_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch has no such class there is nothing to watch."""
    monkeypatch.setattr(torch_private, "local_cache_backend", lambda: None)

    with contextlib.ExitStack() as stack:
        tuning.watch(stack)
