r"""What bytes tell about who made them: absolute paths, addresses, the names of this user and this host.

Pure except for ``this_machine``. A search, not a proof: it sees text as it stands in the bytes, not what is compressed
or encoded, and of other machines' names only those that look like one (``user@host``, ``*.local``, the folder below
``/home``).

    found = Findings(this_machine())
    found.look("inductor f...", data)
    [one for one in found.sorted() if one.reveals]
"""

from __future__ import annotations

import contextlib
import getpass
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

# A path begins after anything but a name, a relative path, a URL or a bracket; or after the length of pickled text,
# a compiler flag, or file://. The slash comes first, because searching for a literal is what re does quickly.
_BEGIN = rb"/(?:(?<![\w.~/\\)\]-]/)|(?<=[\x8cC][\x00-\xff]/)|(?<=-[ILB]/)|(?<=file:///))"
_PART = rb"[\w.+@%~=,-]"
_HOME_PATH = re.compile(_BEGIN + rb"(?:(?:home|Users)/|root/)[^\x00-\x20\x7f\"'`<>|:;,*?()\[\]{}\\]{2,1024}")
_PATH = re.compile(_BEGIN + _PART + rb"{2,255}(?:/" + _PART + rb"{1,255}){1,64}")
_ADDRESS = re.compile(rb"(?<![\w.+-])[\w.+-]{2,64}@(?:[A-Za-z0-9][A-Za-z0-9-]{1,62}\.)+[a-z]{2,24}(?![\w-])")
_HOST = re.compile(
    rb"(?<![\w.-])(?:[a-z0-9][a-z0-9-]{0,62}\.){1,8}(?:local|localdomain|internal|intranet|corp|lan|home\.arpa)(?![\w.(\[-])",
    re.IGNORECASE,
)
# ``threading.local`` and the like.
_ATTRIBUTE = re.compile(rb"[A-Za-z.]+\.local")
_IP = re.compile(rb"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")

_HOME = re.compile(r"/home/|/Users/|/root/")
# What every installation has: tells which packages were used, not by whom.
_SYSTEM = re.compile(r"/(?:usr|lib|lib32|lib64|bin|sbin|etc|dev|proc|sys|opt/(?:rocm|nvidia|cuda))[/-]")
# Every machine has these, or may be called so: finding the word says nothing.
_COMMON_NAMES = frozenset(
    {"root", "user", "users", "admin", "ubuntu", "debian", "localhost", "runner", "build", "main", "test"}
)
_SHORTEST_NAME = 4
_SHORTEST_PATH = 9  # "/oy/kS_t" occurs in any megabytes of machine code

_KEPT_PLACES = 20


@dataclass
class Finding:
    """One text, how often it was found, and where (the first places)."""

    kind: str
    """``home``, ``path``, ``system``, ``address``, ``host``, ``ip`` or ``user``."""
    text: str
    count: int = 0
    places: list[str] = field(default_factory=list)

    @property
    def reveals(self) -> bool:
        """Whether it tells about a person or a machine; a path that every installation has does not."""
        return self.kind != "system"


class Findings:
    """Collects over many pieces of bytes. ``names`` are (kind, name) pairs to look for as whole words."""

    def __init__(self, names: Iterable[tuple[str, str]] = ()) -> None:
        self._names = [(kind, _word(name)) for kind, name in names]
        self._found: dict[tuple[str, str], Finding] = {}

    def look(self, place: str, data: bytes) -> None:
        """Search ``data``, and remember it as ``place``."""
        for kind, text in _search(data):
            self._add(kind, text, place)
        for kind, pattern in self._names:
            for match in pattern.findall(data):
                self._add(kind, match.decode("ascii", "replace"), place)

    def sorted(self) -> list[Finding]:
        """What was found; what reveals most first."""
        return sorted(self._found.values(), key=lambda one: (not one.reveals, one.kind, one.text))

    def _add(self, kind: str, text: str, place: str) -> None:
        found = self._found.setdefault((kind, text), Finding(kind, text))
        found.count += 1
        if place not in found.places and len(found.places) < _KEPT_PLACES:
            found.places.append(place)


def this_machine() -> list[tuple[str, str]]:
    """The names of this user and this host, unless they are words that would be found anywhere."""
    names = []
    with contextlib.suppress(OSError, KeyError, ImportError):  # a user without a name, as in some containers
        names.append(("user", getpass.getuser()))
    host = socket.gethostname()
    names += [("host", host), ("host", host.partition(".")[0])]
    return sorted(
        {
            (kind, name)
            for kind, name in names
            if len(name) >= _SHORTEST_NAME and name.lower() not in _COMMON_NAMES
        }
    )


def _search(data: bytes) -> Iterator[tuple[str, str]]:
    for match in _HOME_PATH.findall(data):
        yield "home", _trimmed(match)
    for path in map(_trimmed, _PATH.findall(data)):
        if len(path) >= _SHORTEST_PATH and not _HOME.match(path):
            yield "system" if _SYSTEM.match(path) else "path", path
    for match in _ADDRESS.findall(data):
        yield "address", match.decode("ascii")
    for match in _HOST.findall(data):
        if not _ATTRIBUTE.fullmatch(match):
            yield "host", match.decode("ascii")
    for match in _IP.findall(data):
        text = match.decode("ascii")
        if _is_private_ip(text):
            yield "ip", text


def _trimmed(path: bytes) -> str:
    return path.decode("utf-8", "replace").rstrip(".,=-")


def _is_private_ip(text: str) -> bool:
    """Only addresses of private networks: four numbers are more often a version than anything else."""
    parts = [int(part) for part in text.split(".")]
    if max(parts) > 255:
        return False
    return parts[0] == 10 or parts[:2] == [192, 168] or (parts[0] == 172 and 16 <= parts[1] <= 31)


def _word(name: str) -> re.Pattern[bytes]:
    return re.compile(rb"(?<![A-Za-z0-9])" + re.escape(name.encode()) + rb"(?![A-Za-z0-9])")
