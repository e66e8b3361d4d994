"""Every ``CACHEKIT_*`` variable, read once into one frozen value.

The lowest layer beside ``errors``: standard library only, no IO. It decides names and paths; creating folders,
opening files and acting on a mode is left to the layers above.

    settings = Settings.from_env()
    settings.store_root          # where DirectoryStore keeps bundles
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar, get_args

from cachekit.errors import ConfigurationError

Mode = Literal["auto", "on", "readonly", "strict", "off"]
Save = Literal["auto", "close", "never"]

PREFIX = "CACHEKIT_"

# A namespace becomes one segment of file names, S3 keys and URLs.
_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")

_Choice = TypeVar("_Choice", bound=str)


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: the field it fills, its default in words, what it accepts and what it does."""

    name: str
    field: str
    default: str
    allowed: str
    meaning: str


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "CACHEKIT_MODE",
        "mode",
        "auto",
        ", ".join(get_args(Mode)),
        "what a session may do: install and save, only install, or nothing; strict turns a compile into an error",
    ),
    Variable(
        "CACHEKIT_DIR",
        "dir",
        "$XDG_CACHE_HOME/cachekit, else ~/.cache/cachekit",
        "a folder on a local file system",
        "where bundles, the manifest, the signing key and the private folders of processes are kept",
    ),
    Variable(
        "CACHEKIT_SAVE",
        "save",
        "auto",
        ", ".join(get_args(Save)),
        "when a session saves: in the background as soon as there is something new, only at close, "
        "or only where `session.save()` is called (`never`)",
    ),
    Variable(
        "CACHEKIT_NAMESPACE",
        "namespace",
        "local",
        "a-z, 0-9, '.', '_' and '-', starting with a letter or digit, at most 63 characters",
        "which part of the store is used; nothing is shared across namespaces",
    ),
    Variable(
        "CACHEKIT_MAX_SIZE",
        "max_size",
        "20 GiB",
        "a size such as 10GiB, 500MB or 1048576 (bytes), or none for no limit",
        "how much the store may hold; beyond it, the least valuable compiles go after a save",
    ),
)

DEFAULT_MAX_SIZE = 20 * 2**30
"""Bundles have megabytes to some hundreds of them: room for years of one machine, and no disk is full of it."""

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmgt]i?b|b)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment asks for. Arguments given in code win: ``dataclasses.replace(settings, mode="off")``.

    ``unknown`` names the ``CACHEKIT_*`` variables that no setting reads, so that a misspelt one can be reported.

    Raises:
        ConfigurationError: a value is not one of the allowed ones; also from ``dataclasses.replace``.
    """

    dir: Path
    mode: Mode = "auto"
    save: Save = "auto"
    namespace: str = "local"
    max_size: int | None = DEFAULT_MAX_SIZE
    unknown: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Check every value, whichever way the instance was made."""
        _choice("CACHEKIT_MODE", self.mode, get_args(Mode))
        _choice("CACHEKIT_SAVE", self.save, get_args(Save))
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigurationError(_wrong("CACHEKIT_NAMESPACE", self.namespace))
        if not self.dir.is_absolute():
            raise ConfigurationError(f"CACHEKIT_DIR={str(self.dir)!r} is not an absolute path")
        if self.max_size is not None and self.max_size < 1:
            raise ConfigurationError(_wrong("CACHEKIT_MAX_SIZE", str(self.max_size)))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read ``environ`` (default: this process's). A variable that is unset or blank takes its default.

        Raises:
            ConfigurationError: a value is not one of the allowed ones, or no home folder is known and
                ``CACHEKIT_DIR`` is not set.
        """
        environ = os.environ if environ is None else environ

        def get(name: str, default: str) -> str:
            return environ.get(name, "").strip() or default

        return cls(
            dir=_folder(environ),
            mode=_choice("CACHEKIT_MODE", get("CACHEKIT_MODE", "auto").lower(), get_args(Mode)),
            save=_choice("CACHEKIT_SAVE", get("CACHEKIT_SAVE", "auto").lower(), get_args(Save)),
            namespace=get("CACHEKIT_NAMESPACE", "local"),
            max_size=size(get("CACHEKIT_MAX_SIZE", str(DEFAULT_MAX_SIZE))),
            unknown=_unknown(environ),
        )

    @property
    def store_root(self) -> Path:
        """Root of the local directory store."""
        return self.dir / "store"

    @property
    def manifest_path(self) -> Path:
        """The SQLite file of the local manifest."""
        return self.dir / "manifest.sqlite3"

    @property
    def keys_root(self) -> Path:
        """Folder of the local signing key and of the keys that are trusted."""
        return self.dir / "keys"

    @property
    def seen_root(self) -> Path:
        """Folder of the newest head seen of each bundle; outside the store, which must not turn it back."""
        return self.dir / "seen"

    @property
    def process_root(self) -> Path:
        """Parent of the private folders, one per process."""
        return self.dir / "process"


def size(text: str, name: str = "CACHEKIT_MAX_SIZE") -> int | None:
    """The bytes that a size such as ``10GiB``, ``500 MB`` or ``1048576`` means; None for ``none``.

    ``name`` is the variable or option that an error names.

    Raises:
        ConfigurationError: it is no size, or less than a byte.
    """
    if text.strip().lower() == "none":
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(_wrong("CACHEKIT_MAX_SIZE", text, name))
    unit = (match[2] or "b").lower()
    scale = (1024 if "i" in unit else 1000) ** "bkmgt".index(unit[0])
    found = int(float(match[1]) * scale) if "." in match[1] else int(match[1]) * scale
    if found < 1:
        raise ConfigurationError(_wrong("CACHEKIT_MAX_SIZE", text, name))
    return found


def _folder(environ: Mapping[str, str]) -> Path:
    """``CACHEKIT_DIR``, made absolute, or the user's cache folder."""
    chosen = environ.get("CACHEKIT_DIR", "").strip()
    if chosen:
        return Path(os.path.abspath(_expanduser(chosen, environ)))
    xdg = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    if os.path.isabs(xdg):
        return Path(xdg, "cachekit")
    return Path(_expanduser("~", environ), ".cache", "cachekit")


def _expanduser(path: str, environ: Mapping[str, str]) -> str:
    """``path`` with a leading ``~`` replaced; ``HOME`` is taken from ``environ``, not from the process."""
    home = environ.get("HOME", "")
    if home and (path == "~" or path.startswith("~/")):
        return home + path[1:]
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        raise ConfigurationError(
            "no home folder is known: set CACHEKIT_DIR to a folder on a local file system"
        )
    return expanded


def _choice(name: str, value: str, allowed: tuple[_Choice, ...]) -> _Choice:
    """``value``, if it is one of ``allowed``."""
    for choice in allowed:
        if value == choice:
            return choice
    raise ConfigurationError(_wrong(name, value))


def _wrong(name: str, value: str, shown: str | None = None) -> str:
    allowed = next(variable.allowed for variable in VARIABLES if variable.name == name)
    return f"{shown or name}={value!r} is not allowed; use {allowed}"


def _unknown(environ: Mapping[str, str]) -> tuple[str, ...]:
    known = {variable.name for variable in VARIABLES}
    return tuple(sorted(name for name in environ if name.startswith(PREFIX) and name not in known))
