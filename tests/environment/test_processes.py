"""Processes that are started in an odd way: limits, streams, umasks, flags of the interpreter, process ids."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import reachable
from tests.environment.containers import UNKNOWN_USER, Container, told

TRY = """
from tests.environment.trial import keep, room
tell(**room()[1], **keep())
"""
HERE = Container(environment={"CACHEKIT_DIR": "/mnt/cachekit", "TMPDIR": None})
WORKS = {"place": "/mnt/cachekit/process", "passed_over": [], "error": None, "generation": 1}


def works(facts: Mapping[str, Any]) -> bool:
    """Whether a place was found at once and something was kept."""
    return {name: facts.get(name) for name in WORKS} == WORKS


@pytest.mark.parametrize(
    "options", [("-I",), ("-OO", "-B"), ("-P",), ("-X", "utf8=0"), ("-S", "-E")], ids=" ".join
)
def test_flags_of_the_interpreter_do_not_matter(options: tuple[str, ...]) -> None:
    """Isolated, without assertions and docstrings, without bytecode, without site: it works as always."""
    if options == ("-P",) and sys.version_info < (3, 11):
        pytest.skip("Python 3.11 brought -P")
    script = f"sys.path[1:1] = {[reachable.there(path) for path in sys.path]!r}" if "-S" in options else ""

    assert works(HERE.but(python=options).run(script + TRY))


def test_bytecode_need_not_be_written() -> None:
    """PYTHONDONTWRITEBYTECODE and a safe path, as images set them."""
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1", "PYTHONOPTIMIZE": "2"}

    assert works(HERE.but(environment=environment).run(TRY))


def test_an_empty_environment_is_enough() -> None:
    """As after ``env -i``: no HOME, no PATH, no locale; only the folder is named."""
    empty = dict.fromkeys(os.environ) | {"CACHEKIT_DIR": "/mnt/cachekit"}

    assert works(HERE.but(environment={**empty, "PATH": os.defpath}).run("os.environ.pop('PATH')\n" + TRY))


@pytest.mark.parametrize("umask", ["0000", "0077", "0777"])
def test_the_umask_decides_nothing(umask: str) -> None:
    """Everything is its user's alone under a umask that gives all rights, and usable under one that takes them all."""
    facts = HERE.but(setup="chmod 777 /mnt", shell=f"umask {umask}", user=UNKNOWN_USER).run("""
from pathlib import Path
from tests.environment.trial import keep, room
folder, place = room()
kept = [keep(), keep(b"\\x7fELF another")][1]
modes = {oct(path.stat().st_mode & 0o777) for path in Path("/mnt/cachekit").rglob("*")
         if path.parent.name != "inductor" and not path.name.endswith(".pub")}
tell(**place, **kept, modes=sorted(modes), root=oct(Path("/mnt/cachekit").stat().st_mode & 0o777))
""")

    assert works({**facts, "generation": 1})
    assert facts["root"] == "0o700"
    assert set(facts["modes"]) <= {"0o600", "0o700"}


def test_closed_standard_streams_do_not_matter(tmp_path: Path) -> None:
    """A daemon without stdin, stdout and stderr that opens them later does not let go of the folder's lock."""
    HERE.but(room=tmp_path, shell="exec <&- >&- 2>&-").start("""
from tests.environment.trial import keep, room
folder, place = room()
for number in range(3):
    null = os.open(os.devnull, os.O_RDWR)
    if null != number:
        os.dup2(null, number)
held = folder.intact
tell = lambda **facts: open("/mnt/told", "w").write(json.dumps(facts))
tell(**place, **keep(), held=held and folder._lock.descriptor > 2)
""").communicate(timeout=60)

    facts = json.loads((tmp_path / "told").read_text())
    assert works(facts)
    assert facts["held"]


def test_few_files_may_be_open() -> None:
    """Sixteen descriptors are enough to find a place, save and read."""
    assert works(HERE.but(shell="ulimit -n 16").run(TRY))


def test_a_limit_on_file_sizes_costs_only_the_saving() -> None:
    """RLIMIT_FSIZE ends neither the process nor the engine: the save names path and errno."""
    facts = HERE.run("""
import resource
from tests.environment.trial import keep, room
place = room()[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
tell(**place, **keep(os.urandom(100_000)))
""")

    assert facts["place"] == "/mnt/cachekit/process"
    assert "EFBIG: File too large" in facts["error"]


# --- process ids and children --------------------------------------------------------------------------------------


def test_the_first_process_of_a_container_works() -> None:
    """An engine that is process 1."""
    facts = HERE.but(process_ids=True).run("assert os.getpid() == 1\n" + TRY)

    assert works(facts)


WAITING = """
from tests.environment.trial import keep, room
folder, place = room()
tell(pid=os.getpid(), path=str(folder.path))
sys.stdin.readline()
tell_again = {**place, **keep(), "there": (folder.inductor / "kernel.so").exists()}
print("RESULT " + json.dumps(tell_again), flush=True)
"""


def test_two_containers_with_one_folder_and_the_same_process_ids(tmp_path: Path) -> None:
    """Both are process 1 and share CACHEKIT_DIR: neither takes the other for dead, and each has its own folder."""
    container = HERE.but(room=tmp_path, process_ids=True)
    first = container.start(WAITING)
    assert first.stdout is not None
    one = told(first.stdout.readline())

    second = container.start(WAITING)
    assert second.stdout is not None
    two = told(second.stdout.readline())
    ends = [told(process.communicate("go\n", timeout=60)[0]) for process in (first, second)]

    assert one["pid"] == two["pid"] == 1
    assert one["path"] != two["path"]
    assert all(end["there"] and end["error"] is None for end in ends)
    assert list((tmp_path / "cachekit" / "process").iterdir()) == []


PARENT = """
import os, subprocess, sys
from pathlib import Path
from cachekit.runtime.folder import PrivateFolder
folder = PrivateFolder(Path(sys.argv[1]))
(folder.inductor / "kernel.so").write_bytes(b"code")
print(folder.inductor, flush=True)
wait = "import sys; print(flush=True); sys.stdin.read()"
if sys.argv[2] == "forked":
    if os.fork() == 0:
        os.close(1)
        sys.stdin.read()
        os._exit(0)
else:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder.inductor)}
    subprocess.Popen([sys.executable, "-c", wait], env=environment, stdout=subprocess.PIPE).stdout.readline()
"""


@pytest.mark.parametrize("kind", ["forked", "started"])
def test_a_child_that_outlives_its_parent_keeps_the_folder(tmp_path: Path, kind: str) -> None:
    """A child compiles into its parent's folder: it stays while the child lives, and the next start removes it."""
    read, write = os.pipe()  # the child lives until this is closed
    try:
        parent = subprocess.run(
            [sys.executable, "-c", PARENT, str(tmp_path), kind],
            cwd=Path(__file__).resolve().parents[2],
            stdin=read,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
        )
        inherited = Path(parent.stdout.strip())
        start_another(tmp_path)
        assert (inherited / "kernel.so").exists()
    finally:
        os.close(read)
        os.close(write)

    for _ in range(200):  # until the child has noticed
        start_another(tmp_path)
        if not inherited.exists():
            break
    assert not inherited.exists()


def start_another(parent: Path) -> None:
    """Start and end a process that cleans up after dead ones."""
    code = "import sys; from cachekit.runtime.folder import PrivateFolder, Path; PrivateFolder(Path(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", code, str(parent)],
        cwd=Path(__file__).resolve().parents[2],
        timeout=60,
        check=True,
    )
