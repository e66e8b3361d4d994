"""What every test starts from: a clean environment, its own temporary folder, and no network but loopback.

The environment is cleaned before the first fixture of any scope and put back after each test, because torch itself
writes ``TORCHINDUCTOR_CACHE_DIR`` on its first compile. Processes that tests start inherit all of it.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Each of these changes what is compiled, where it is kept, or where a hub library looks.
_CLEANED = ("CACHEKIT_", "TORCHINDUCTOR_", "TORCH_COMPILE_", "TORCH_LOGS", "TRITON_", "XDG_", "HF_")
# torch reads CI when it is imported, and sets itself up otherwise where it finds it. Workers are told by another name.
if os.environ.pop("CI", None):
    os.environ["TESTS_IN_CI"] = "1"

# torch hashes precompiled headers with a program that a machine with g++ need not have, and fails without it.
_HEADERS = {} if shutil.which("openssl") else {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
_SOCKET_EVENTS = ("socket.connect", "socket.sendto", "socket.sendmsg")
_LOOKUP_EVENTS = ("socket.getaddrinfo", "socket.gethostbyname")


class NetworkBlockedError(BaseException):
    """A test tried to leave this machine. Not an ``Exception``, so that no code under test can swallow it."""


def is_loopback(host: object) -> bool:
    """Whether ``host`` is this machine: a loopback address, ``localhost``, or none given (a passive socket)."""
    text = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if not isinstance(text, str):
        return text is None
    if text in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(text.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _audit_sockets(event: str, arguments: tuple[object, ...]) -> None:
    if event in _SOCKET_EVENTS:
        sock, address = arguments[0], arguments[1]
        family = sock.family if isinstance(sock, socket.socket) else None
        local = family == socket.AF_UNIX or not isinstance(address, tuple)
        if not local and not is_loopback(address[0]):
            raise NetworkBlockedError(f"{event} to {address!r}: tests talk to loopback only")
    elif event in _LOOKUP_EVENTS and not is_loopback(arguments[0]):
        raise NetworkBlockedError(f"{event} of {arguments[0]!r}: tests talk to loopback only")


def pytest_configure() -> None:
    """Block the network for good: an audit hook sees calls from C as well and cannot be removed.

    Hypothesis judges no speed, on a machine that compiles beside it, and tries the same examples each time in CI.
    """
    sys.addaudithook(_audit_sockets)
    settings.register_profile(
        "house",
        deadline=None,
        derandomize="TESTS_IN_CI" in os.environ,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("house")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where there is no CUDA device; torch is imported only if there are any."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none here"))


def _set_environment(wanted: dict[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)


@pytest.fixture(scope="session", autouse=True)
def _clean_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Clean the environment; move home, caches and temporary files into this run's own folder, which it yields."""
    before, temporary = dict(os.environ), tempfile.tempdir
    root = tmp_path_factory.mktemp("session")
    home, scratch = root / "home", root / "tmp"
    home.mkdir()
    scratch.mkdir()
    wanted = {name: value for name, value in before.items() if not name.startswith(_CLEANED)}
    _set_environment(wanted | _OFFLINE | _HEADERS | {"HOME": str(home), "TMPDIR": str(scratch)})
    tempfile.tempdir = None
    yield scratch
    _set_environment(before)
    tempfile.tempdir = temporary


@pytest.fixture(autouse=True)
def _clean_environment(_clean_session: Path) -> Iterator[None]:
    """Give each test its own ``TMPDIR`` and put the environment back after it, whatever it or torch changed.

    The folder stays until the run ends: code that torch compiled and loaded may still be read from it.
    """
    before, temporary = dict(os.environ), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.mkdtemp(dir=_clean_session)
    tempfile.tempdir = None
    yield
    _set_environment(before)
    tempfile.tempdir = temporary
