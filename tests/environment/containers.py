"""Settings like those of a container, made by the test itself: mounts, users and process ids of a process's own.

A :class:`Container` says how a process is set apart; :meth:`Container.run` runs a script in it and returns what it told
with ``tell(fact=...)``. The script finds its temporary folders empty, and a folder of the test as ``/mnt``. Lines in
``setup`` run as root of a new user and mount namespace, so what they mount is seen by that process alone; lines in
``shell`` run right before the script, as its user. Needs ``unshare`` and ``mount`` of util-linux, and a kernel that
lets a user have namespaces.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import reachable

UNKNOWN_USER = 12345
"""An id that no password file has."""

TIMEOUT_S = 300

_MOUNTED = "/mnt"

_FUNCTIONS = """
read_only() {
    for point in $(cut -d ' ' -f 5 /proc/self/mountinfo | sort -u); do
        case $point in /proc*) ;; *) mount -o remount,bind,ro "$point" 2>/dev/null || true ;; esac
    done
    ! touch /read-only 2>/dev/null
}
"""
"""``read_only`` in ``setup`` makes all that is mounted so far read-only, ``/`` included."""


_PRELUDE = f"""
import json, os, sys
sys.path.insert(0, {str(reachable.REPOSITORY)!r})

def tell(**facts):
    print("RESULT " + json.dumps(facts), flush=True)
"""


@dataclass(frozen=True)
class Container:
    """How a process is set apart. ``environment`` is added to this process's; None takes a variable away."""

    room: Path | None = None
    """A folder of the test that the script finds as ``/mnt``; without one that is an empty tmpfs."""
    setup: str = ""
    shell: str = ""
    user: int | None = None
    process_ids: bool = False
    """Process ids of its own; the script is number 1."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    python: tuple[str, ...] = ()
    """Options of the interpreter."""

    def but(self, **changes: Any) -> Container:
        """The same with some changes; those to the environment are added."""
        changes["environment"] = {**self.environment, **changes.get("environment", {})}
        return dataclasses.replace(self, **changes)

    def start(self, script: str, **variables: Any) -> subprocess.Popen[str]:
        """Start the script, with ``variables`` set in it."""
        skip_unless_possible()
        values = "".join(f"{name} = {value!r}\n" for name, value in variables.items())
        environment = {**os.environ, **self.environment}
        return subprocess.Popen(
            [
                *self._layers(),
                *(reachable.PYTHON, "-W", "ignore", *self.python, "-c", _PRELUDE + values + script),
            ],
            cwd="/",
            env={name: value for name, value in environment.items() if value is not None},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
        )

    def run(self, script: str, **variables: Any) -> dict[str, Any]:
        """Run the script to its end, which must be a good one; what it told, and its ``stderr``."""
        process = self.start(script, **variables)
        output, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, errors[-4000:]
        return {**told(output), "stderr": errors}

    def _layers(self) -> list[str]:
        """The commands that each set something up and then become the next one."""
        layers = ["unshare", "-Urm", *(["-pf", "--mount-proc"] if self.process_ids else []), "--"]
        layers += _shell(_FUNCTIONS + self._mounts() + self.setup)
        if self.user is not None:
            layers += ["unshare", "-U", f"--map-user={self.user}", f"--map-group={self.user}", "--"]
        return layers + _shell(self.shell)

    def _mounts(self) -> str:
        first = (
            f"mount --bind {shlex.quote(str(self.room))} {_MOUNTED}"
            if self.room
            else f"mount -t tmpfs none {_MOUNTED}"
        )
        covered = (
            f"mount -t tmpfs -o mode=1777 none {name}" for name in reachable.TEMPORARY if Path(name).is_dir()
        )
        return reachable.MOUNTS + "\n".join([first, *covered, ""])


def told(output: str) -> dict[str, Any]:
    """The facts of the one ``tell`` in a script's output."""
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
    facts: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return facts


def _shell(lines: str) -> list[str]:
    return ["sh", "-ec", lines + '\nexec "$@"', "sh"] if lines else []


@functools.cache
def _refusal() -> str | None:
    """Why this machine makes no such settings; None if it does."""
    try:
        done = subprocess.run(
            ["unshare", "-Urm", "sh", "-ec", "mount -t tmpfs none /tmp && mount -o remount,bind,ro /tmp"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except FileNotFoundError:
        return "there is no unshare(1): install util-linux"
    return done.stderr.strip() if done.returncode else None


def skip_unless_possible() -> None:
    """Skip the test where the kernel does not let this user have namespaces, and say what to do."""
    refusal = _refusal()
    if refusal:
        pytest.skip(
            f"no user and mount namespaces here ({refusal}): run as root, in a privileged container, "
            "or with kernel.apparmor_restrict_unprivileged_userns=0"
        )
