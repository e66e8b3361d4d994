"""Errors of the private folder are told from those of the compiler, however they are wrapped."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from torch._inductor.exc import CppCompileError, InductorError

from cachekit.runtime.folder_errors import folder_error

FOLDER = Path("/cache/process/1-abc")
KERNEL = f"{FOLDER}/inductor/aa/kernel.main.so"


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """The error as a handler sees it."""
    try:
        raise error from cause  # noqa: TRY301  to have it with its cause
    except BaseException as exc:  # noqa: BLE001  same
        return exc


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("wrapped", ["bare", "cause", "inductor", "text"])
def test_a_failing_folder_is_named_with_the_errno(number: int, wrapped: str) -> None:
    """Whether torch passes the error on, wraps it, or only has a worker's text of it."""
    inner = OSError(number, os.strerror(number), KERNEL)
    error: BaseException = {
        "bare": inner,
        "cause": raised(RuntimeError("compiling failed"), inner),
        "inductor": InductorError(inner, None),
        "text": RuntimeError(f"a worker said: {inner}"),
    }[wrapped]

    reason = folder_error(error, FOLDER, intact=True)

    assert reason is not None
    assert str(FOLDER) in reason
    assert errno.errorcode[number] in reason


def test_a_full_disk_counts_without_a_path() -> None:
    """Python's write() tells no file name."""
    assert folder_error(OSError(errno.ENOSPC, "No space left on device"), FOLDER, intact=True)


def test_a_full_disk_in_the_words_of_a_linker() -> None:
    """What a C++ compiler prints has the folder in its command line and the system's words in its output."""
    error = CppCompileError(["g++", "-o", KERNEL], "ld: final link failed: No space left on device")

    assert folder_error(error, FOLDER, intact=True) == f"{FOLDER}: ENOSPC: No space left on device"


def test_a_library_that_was_cut_short_is_the_folder_s_fault() -> None:
    """The loader's words for it."""
    assert folder_error(ImportError(f"{KERNEL}: file too short"), FOLDER, intact=True)


@pytest.mark.parametrize("intact", [True, False])
def test_a_missing_file_counts_only_where_the_folder_is_gone(intact: bool) -> None:
    """Looking for a file that is not there is what a cache does; in a folder that vanished it is the reason."""
    error = raised(RuntimeError("compiling failed"), FileNotFoundError(errno.ENOENT, "No such file", KERNEL))

    assert (folder_error(error, FOLDER, intact=intact) is None) is intact


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("missing lowering"),
        CppCompileError(["g++", "-o", KERNEL], "error: expected ';' before '}' token"),
        OSError(errno.ENOSPC, "No space left on device", "/elsewhere/file"),
        OSError(errno.EACCES, "Permission denied", f"{FOLDER}-of-another/file"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "g++"),
        PermissionError(errno.EACCES, "Permission denied"),
    ],
    ids=lambda error: f"{type(error).__name__} {str(error)[-30:]!r}",
)
def test_the_compiler_s_own_errors_are_not_the_folder_s(error: BaseException) -> None:
    """They must reach the engine, as they would have without a cache."""
    assert folder_error(error, FOLDER, intact=True) is None


def test_causes_that_go_in_a_circle_end() -> None:
    """An exception can be its own context's cause."""
    first, second = RuntimeError("one"), RuntimeError("two")
    first.__context__, second.__context__ = second, first

    assert folder_error(first, FOLDER, intact=True) is None
