"""cachekit: the second start of a compiled diffusion pipeline is a warm one, and is proved to be.

    import cachekit

    session = cachekit.attach(pipe)      # find, verify, install, compile
    pipe("a photo of a cat")
    print(session.report())              # what was really hit and saved

Importing this package loads nothing outside the standard library; each name below is imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cachekit._version import __version__

if TYPE_CHECKING:
    from cachekit.errors import CachekitError as CachekitError
    from cachekit.hooks.attach import attach as attach
    from cachekit.identity import Fingerprint as Fingerprint
    from cachekit.identity import Plan as Plan
    from cachekit.identity import Toolchain as Toolchain
    from cachekit.identity import fingerprint as fingerprint
    from cachekit.manifest import Manifest as Manifest
    from cachekit.runtime.report import Report as Report
    from cachekit.runtime.session import Session as Session
    from cachekit.settings import Settings as Settings

_HOMES = {
    "CachekitError": "cachekit.errors",
    "Fingerprint": "cachekit.identity",
    "Manifest": "cachekit.manifest",
    "Plan": "cachekit.identity",
    "Report": "cachekit.runtime.report",
    "Session": "cachekit.runtime.session",
    "Settings": "cachekit.settings",
    "Toolchain": "cachekit.identity",
    "attach": "cachekit.hooks",
    "fingerprint": "cachekit.identity",
}

__all__ = [
    "CachekitError",
    "Fingerprint",
    "Manifest",
    "Plan",
    "Report",
    "Session",
    "Settings",
    "Toolchain",
    "__version__",
    "attach",
    "fingerprint",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
