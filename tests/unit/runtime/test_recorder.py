"""Artifacts and kernels are filed with the session on whose behalf the compiler runs, and with no other."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cachekit.runtime import recorder, torch_private
from cachekit.runtime.recorder import Recording, scope


@pytest.fixture
def watched() -> Iterator[None]:
    """Have torch's artifact manager watched, all types of artifact known, and its own list left alone."""
    for module in (
        "torch._inductor.codecache",
        "torch._inductor.runtime.autotune_cache",
        "torch._functorch._aot_autograd.autograd_cache",
    ):
        importlib.import_module(module)
    manager = torch_private.artifact_manager()
    with contextlib.ExitStack() as stack, manager.with_fresh_cache():
        recorder.watch_artifacts(stack)
        yield


def record(key: str, content: object = b"bytes", *, kind: str = "inductor") -> None:
    """Tell torch's manager of an artifact, as its caches do."""
    torch_private.artifact_manager().record_artifact(kind, key, content)


def test_an_artifact_is_filed_with_the_scope_it_was_recorded_in(watched: None) -> None:
    """Inside a scope artifacts are filed with its recording; outside of all scopes with none."""
    recording = Recording()

    record("before")
    with scope(recording):
        record("within")
    record("after")

    assert recording.take().artifacts == [("inductor", "within", b"bytes")]


def test_the_innermost_scope_gets_the_artifact(watched: None) -> None:
    """A scope within another takes what is recorded in it, and gives way when it ends."""
    outer, inner = Recording(), Recording()

    with scope(outer):
        with scope(inner):
            record("inner")
        record("outer")

    assert [key for _, key, _ in inner.take().artifacts] == ["inner"]
    assert [key for _, key, _ in outer.take().artifacts] == ["outer"]


def test_a_scope_ends_with_an_exception_too(watched: None) -> None:
    """What a failed call leaves behind is filed, and nothing after it."""
    recording = Recording()

    def failing() -> None:
        with scope(recording):
            record("failed")
            raise KeyError

    with pytest.raises(KeyError):
        failing()

    assert recorder.current() is None
    assert [key for _, key, _ in recording.take().artifacts] == ["failed"]


def test_a_scope_belongs_to_one_thread(watched: None) -> None:
    """What another thread compiles meanwhile is not filed here; its own scope gets it."""
    mine, theirs = Recording(), Recording()
    filed: list[tuple[str, str, bytes]] = []

    def other() -> None:
        record("outside of any scope")
        with scope(theirs):
            record("theirs")
        filed.extend(theirs.take().artifacts)

    with scope(mine):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    assert not mine.take()
    assert [key for _, key, _ in filed] == ["theirs"]


def test_threads_that_share_a_recording_have_a_window_each(watched: None) -> None:
    """What one call compiles is never taken for what a call on another thread used meanwhile."""
    recording = Recording()
    filed: list[tuple[str, str, bytes]] = []

    def other() -> None:
        with scope(recording):
            record("theirs")
        filed.extend(recording.take().artifacts)

    with scope(recording):
        record("mine")
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    assert [key for _, key, _ in filed] == ["theirs"]
    assert [key for _, key, _ in recording.take().artifacts] == ["mine"]


def test_bytes_are_kept_by_reference(watched: None) -> None:
    """Big artifacts are not copied."""
    content = b"x" * 100
    recording = Recording()

    with scope(recording):
        record("key", content)

    assert recording.take().artifacts[0][2] is content


def test_what_is_not_bytes_is_kept_as_torch_would_store_it(watched: None) -> None:
    """An autotune result, a dict, is filed as the JSON that a bundle holds."""
    recording = Recording()

    with scope(recording):
        record("aa/key.best_config", {"XBLOCK": 8}, kind="autotune")

    assert recording.take().artifacts == [("autotune", "aa/key.best_config", b'{"XBLOCK": 8}')]


def test_torch_keeps_its_own_list(watched: None) -> None:
    """Watching takes nothing away: torch saves what it would have saved."""
    with scope(Recording()):
        record("f" + "a" * 51)

    saved = torch.compiler.save_cache_artifacts()

    assert saved is not None
    assert saved[1].inductor_artifacts == ["f" + "a" * 51]


def test_watching_is_undone() -> None:
    """After the stack closes torch's method is the one it was."""
    manager = torch_private.artifact_manager()
    before = manager.__dict__["record_artifact"]

    with contextlib.ExitStack() as stack:
        recorder.watch_artifacts(stack)
        assert manager.__dict__["record_artifact"] is not before

    assert manager.__dict__["record_artifact"] is before


def test_a_real_compile_files_both_its_artifacts(watched: None, compiling: Path) -> None:
    """Whatever the caches of one compile record, made or found, is filed with the scope around the call."""
    windows = []
    for _ in range(2):
        torch._dynamo.reset()
        recording = Recording()
        with scope(recording), torch.no_grad():
            torch.compile(lambda x: x @ x, dynamic=False)(torch.ones(4, 4))
        windows.append({(kind, key) for kind, key, _ in recording.take().artifacts})

    made, found = windows
    assert {kind for kind, _ in made} == {"inductor", "aot_autograd"}
    assert found == made


def test_a_kernel_counts_as_compiled_once_it_was() -> None:
    """A kernel that was compiled and is then found by another graph had to be made all the same."""
    recording = Recording()

    recording.add_kernel("aa/one.main.so", compiled=True)
    recording.add_kernel("aa/one.main.so", compiled=False)
    recording.add_kernel("bb/two.main.so", compiled=False)

    assert recording.take().kernels == {"aa/one.main.so": True, "bb/two.main.so": False}


def test_taking_empties_the_recording() -> None:
    """Each window is given once; ``waiting`` says whether there is one."""
    recording = Recording()
    assert not recording.waiting

    recording.add_artifact("inductor", "key", b"bytes")
    assert recording.waiting
    assert recording.take()

    assert not recording.waiting
    assert not recording.take()
