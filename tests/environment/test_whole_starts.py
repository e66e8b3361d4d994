"""Whole starts with torch in the settings that matter most to it: cold in one, warm in the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.environment.conftest import Preload
from tests.environment.containers import UNKNOWN_USER, Container

pytestmark = pytest.mark.slow

ODD = "/mnt/it's größe"
"""A folder whose name no compiler's command line survives."""

TORCH = """
import hashlib, logging
import torch
import cachekit
from tests.functional.nets import Kernel, Product

torch.set_num_threads(1)
commands = []
log = []


class Listener(logging.Handler):
    def emit(self, record):
        log.append(record.getMessage())


logging.getLogger("cachekit").addHandler(Listener(logging.WARNING))


def watch(event, arguments):
    if event == "subprocess.Popen":
        command = arguments[1]
        commands.append(command if isinstance(command, str) else " ".join(map(os.fsdecode, command)))


sys.addaudithook(watch)


def call(module, rows):
    try:
        with torch.no_grad():
            output = module(torch.linspace(-1, 1, 8 * rows).reshape(rows, 8))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return hashlib.sha256(output.numpy().tobytes()).hexdigest()


def start(module, *rows, **options):
    session = cachekit.attach(module, **options)
    outcomes = [call(module, number) for number in rows]
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    session.close()
    return {"outcomes": outcomes, "inductor": inductor, **session.report().to_json()}
"""


@dataclass(frozen=True)
class Baked:
    """A folder that holds the bundle of one cold start, and what that start told."""

    room: Path
    told: dict[str, Any]

    @property
    def container(self) -> Container:
        """Where that folder is ``/mnt``."""
        environment = {
            "CACHEKIT_DIR": ODD,
            "TMPDIR": None,
            "CXX": None,
            "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",  # takes longer than the one kernel
        }
        return Container(room=self.room, environment=environment)


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory) -> Baked:
    """One cold start with a C++ kernel, 15 s, in the folder with the odd name."""
    room = tmp_path_factory.mktemp("room")
    room.chmod(0o777)
    told = Baked(room, {}).container.run(TORCH + "tell(**start(Kernel(), 4, mode='auto'))")
    return Baked(room, told)


def test_a_folder_with_an_odd_name_keeps_what_was_compiled_elsewhere(baked: Baked) -> None:
    """Spaces, quotes and letters beyond ASCII in CACHEKIT_DIR: torch compiles elsewhere, and the bundle is there."""
    (outcome,) = baked.told["outcomes"]

    assert len(outcome) == 64
    assert baked.told["inductor"].startswith("/tmp/cachekit-0/")
    assert baked.told["saved_generations"] == [1]
    assert any("compilers do not take the path" in reason for reason in baked.told["reasons"])


def test_what_is_covered_needs_no_compiler(baked: Baked) -> None:
    """No compiler on the serving machine: the same bits without a compiler run, and torch's own error for the rest."""
    told = baked.container.but(shell="export PATH=/nowhere").run(
        TORCH
        + """
covered = start(Kernel(), 4, 6, mode="strict")
searches = list(commands)
rest = start(Kernel(), 6, mode="auto")
tell(covered=covered, searches=searches, rest=rest)
"""
    )
    covered, rest = told["covered"], told["rest"]

    assert covered["outcomes"][0] == baked.told["outcomes"][0]
    assert covered["outcomes"][1].startswith("StrictMissError")
    assert covered["hits"] == {"aot_autograd": 1, "inductor": 1, "kernel": 1}
    assert {command.partition(" ")[2] for command in told["searches"]} <= {"--version", "-v"}
    assert any(reason.startswith("no C++ compiler on this host") for reason in covered["reasons"])
    assert "InvalidCxxCompiler: No working C++ compiler found" in rest["outcomes"][0]
    assert rest["saved_generations"] == []


def test_a_hardened_container_starts_warm(baked: Baked) -> None:
    """Read-only root, noexec folder for bundles, one tmpfs, a user id without a name or home: nothing is compiled."""
    hardened = baked.container.but(
        setup="""
            mount -o remount,bind,noexec /mnt
            read_only
            mount -t tmpfs -o mode=1777 none /tmp
        """,
        user=UNKNOWN_USER,
        environment={"HOME": None, "XDG_CACHE_HOME": None, "USER": None, "LOGNAME": None},
    )

    told = hardened.run(TORCH + "tell(**start(Kernel(), 4, mode='strict'), commands=commands)")

    assert told["outcomes"] == baked.told["outcomes"]
    assert told["misses"] == {}
    assert told["inductor"].startswith(f"/tmp/cachekit-{UNKNOWN_USER}/")
    assert not any(".cpp" in command for command in told["commands"])


def test_a_clock_that_runs_backwards_and_an_isolated_interpreter(tmp_path: Path, preload: Preload) -> None:
    """Each look at the clock is a minute earlier, and Python runs isolated, without bytecode: it is saved."""
    told = Container(
        room=tmp_path,
        shell=preload("clock"),
        python=("-I", "-B"),
        environment={"CACHEKIT_DIR": "/mnt/cachekit", "CLOCK_START": "1800000000", "CLOCK_STEP": "-60"},
    ).run(
        TORCH
        + """
first = start(Product(), 4)
torch.compiler.reset()
tell(first=first, second=start(Product(), 4, mode="strict"))
"""
    )

    assert told["first"]["saved_generations"] == [1]
    assert told["second"]["outcomes"] == told["first"]["outcomes"]
    assert told["second"]["hits"]["inductor"] == 1
    assert all(told[name]["load_s"] >= 0 and told[name]["first_calls_s"] >= 0 for name in ("first", "second"))


def test_without_a_home_and_on_a_network_file_system_the_engine_goes_on(tmp_path: Path) -> None:
    """A session that knows no folder is disabled; one on NFS is readonly; both say what to set, and both compile."""
    from tests.environment.test_network_file_systems import NFS

    tmp_path.chmod(0o777)
    told = Container(
        room=tmp_path,
        setup=NFS,
        user=UNKNOWN_USER,
        environment={"HOME": None, "XDG_CACHE_HOME": None, "TORCHINDUCTOR_CACHE_DIR": None, "TMPDIR": None},
    ).run(
        TORCH
        + """
homeless = start(Product(), 4)
torch.compiler.reset()
network = start(Product(), 4, dir="/mnt/cachekit")
tell(homeless=homeless, network=network, log=log)
"""
    )
    homeless, network = told["homeless"], told["network"]

    assert len(homeless["outcomes"][0]) == 64
    assert homeless["outcomes"] == network["outcomes"]
    assert "no home folder is known: set CACHEKIT_DIR" in homeless["reasons"][0]
    assert network["mode"] == "readonly"
    assert any("network file system (nfs4)" in reason for reason in network["reasons"])
    assert "cachekit saves nothing: /mnt/cachekit/store is on a network file system (nfs4)" in "\n".join(
        told["log"]
    )
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_may_be_executed_the_engine_goes_on() -> None:
    """Every place is noexec: the session is disabled with what to set, and torch compiles what needs no kernel."""
    told = Container(
        setup="read_only\n"
        + "\n".join(
            f"mount -t tmpfs -o noexec,mode=1777 none {name}"
            for name in ("/mnt", "/tmp", "/var/tmp", "/dev/shm")
        ),
        environment={"CACHEKIT_DIR": "/mnt/cachekit", "TORCHINDUCTOR_CACHE_DIR": None, "TMPDIR": None},
    ).run(TORCH + "tell(**start(Product(), 4), log=log)")

    assert len(told["outcomes"][0]) == 64
    assert told["reasons"][0].count("is mounted noexec") == 4
    assert "set CACHEKIT_DIR or TMPDIR" in told["reasons"][0]
    assert told["log"][0].startswith("cachekit is disabled for this pipeline")
