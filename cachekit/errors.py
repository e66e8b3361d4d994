"""The one exception tree of cachekit.

    CachekitError
    ├── ConfigurationError        the caller or operator must change something
    │   └── UnsupportedError      this platform, torch or pipeline is not supported
    ├── CorruptError              bytes are not what they claim to be
    │   └── LimitError            a count or size is over its limit
    ├── TrustError                a signature is wrong, missing, or by an unknown key
    │   └── RollbackError         an older generation than one already seen
    ├── NewerSchemaError          written by a newer release: left untouched
    ├── StoreError                a store could not be read or written
    │   ├── NotFoundError         proven absence
    │   └── ConflictError         somebody else moved the head first
    ├── ManifestError             the local index could not be read or written
    └── StrictMissError           strict mode: something would have been compiled

Foreign exceptions (OSError, SQLAlchemy, zstandard, ...) are mapped to the most specific of these at the rim,
with ``raise ... from``. Nothing in the engine's call path raises any of them except in strict mode.
"""

from __future__ import annotations

from typing import ClassVar


class CachekitError(Exception):
    """Base of everything cachekit raises. ``code`` is stable and machine-readable."""

    code: ClassVar[str] = "cachekit"

    def diagnostics(self) -> str:
        """One line for people: the stable code and the message."""
        return f"{self.code}: {self}"


class ConfigurationError(CachekitError):
    """A setting or argument is wrong; the message says which and what is allowed."""

    code = "configuration"


class UnsupportedError(ConfigurationError):
    """This platform, torch version or pipeline is not supported."""

    code = "unsupported"


class CorruptError(CachekitError):
    """Bytes are not what they claim to be (checksum, structure, key pattern, digest)."""

    code = "corrupt"


class LimitError(CorruptError):
    """A count or size is over its limit."""

    code = "limit"


class TrustError(CachekitError):
    """A signature is wrong, missing, or made by a key that is not trusted."""

    code = "untrusted"


class RollbackError(TrustError):
    """A store offers an older generation than one that was already seen."""

    code = "rollback"


class NewerSchemaError(CachekitError):
    """A document or manifest was written by a newer release; it is left untouched."""

    code = "newer-schema"


class StoreError(CachekitError):
    """A store could not be read or written; never means absence."""

    code = "store"


class NotFoundError(StoreError):
    """The store proved that the object does not exist."""

    code = "not-found"


class ConflictError(StoreError):
    """The head was moved by somebody else; read it again, merge, retry."""

    code = "conflict"


class ManifestError(CachekitError):
    """The local manifest could not be opened, read or written."""

    code = "manifest"


class StrictMissError(CachekitError):
    """Strict mode: the call would have compiled something that no bundle covers."""

    code = "strict-miss"
