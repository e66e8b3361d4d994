"""The promises of ``tests/conftest.py`` that other tests rely on."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest


def test_environment_is_free_of_what_changes_a_compile() -> None:
    """No variable of cachekit, Inductor or Triton reaches a test from the developer's shell."""
    prefixes = ("CACHEKIT_", "TORCHINDUCTOR_", "TRITON_")

    assert [name for name in os.environ if name.startswith(prefixes)] == []


@pytest.mark.parametrize("attempt", ["first", "second"])
def test_environment_set_by_a_test_is_gone_in_the_next(attempt: str) -> None:
    """What one test writes into the environment, as torch does, is not seen by the next."""
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = attempt


@pytest.mark.parametrize("attempt", ["first", "second"])
def test_temporary_files_go_into_the_tests_own_folder(attempt: str) -> None:
    """``tempfile`` and child processes use an empty folder that belongs to this test alone."""
    assert os.environ["TMPDIR"] == tempfile.gettempdir()
    assert list(Path(tempfile.gettempdir()).iterdir()) == []

    Path(tempfile.gettempdir(), attempt).touch()


def test_own_folder_is_left_empty(tmp_path: Path) -> None:
    """``tmp_path`` holds nothing but what the test puts there."""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_connecting_elsewhere_is_blocked(host: str) -> None:
    """A connection to another machine fails before a packet leaves."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.socket(family, socket.SOCK_STREAM) as sock,
        pytest.raises(BaseException, match="loopback only"),
    ):
        sock.connect((host, 80))


def test_looking_up_a_name_is_blocked() -> None:
    """A name is not even looked up."""
    with pytest.raises(BaseException, match="loopback only"):
        socket.getaddrinfo("example.invalid", 443)


def test_loopback_is_open() -> None:
    """A server of the test's own can be reached."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname(), timeout=5):
            connection, _ = server.accept()
        connection.close()
