"""The keys of a local store: the one this user signs with, and the ones that are trusted.

::

    <root>/signing.pem                  this user's private key, 0600, made on first use
    <root>/trusted/<key id>.pem         public keys; trusting a key is putting it here, revoking it is removing it

The key signs for this store only: nothing makes a fleet trust it. Signing and verifying is `cachekit.bundle.signing`.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from cachekit.errors import ConfigurationError, NotFoundError
from cachekit.store import files

if TYPE_CHECKING:
    from cachekit.bundle.signing import PublicKey, SigningKey

log = logging.getLogger(__name__)

_MAX_PEM_BYTES = 64 * 1024
_PRIVATE = "signing.pem"
_TRUSTED = "trusted"


def load_or_create(root: str | os.PathLike[str]) -> SigningKey:
    """This user's signing key; on first use a new one is made and trusted. Processes that race get the same one.

    Raises `ConfigurationError` if the file is not a private key of this user's alone, `StoreError`.
    """
    folder = Path(root).absolute()
    found = _load(folder)
    if found is None:
        files.make_folder(folder)
        with files.locked(folder / ".lock"):
            found = _load(folder) or _create(folder)
    return found


def trusted(root: str | os.PathLike[str]) -> dict[str, PublicKey]:
    """The trusted public keys by key id; none if no key was ever made or put there.

    A file that holds no public key is named in a warning and passed over. Raises `StoreError`.
    """
    folder = Path(root).absolute()
    if not files.check_private(folder) or not files.check_private(folder / _TRUSTED):
        return {}
    found = {}
    for name in files.names(folder / _TRUSTED):
        if not name.endswith(".pem"):
            continue
        try:
            key = _public(folder / _TRUSTED / name)
        except ConfigurationError as exc:
            log.warning("a key is passed over: %s", exc)  # one bad file must not lock everybody out
            continue
        found[key.keyid] = key
    return found


def trust(root: str | os.PathLike[str], key: PublicKey) -> Path:
    """Trust what ``key`` signs in this store from now on; returns the file to remove to revoke that.

    Raises `ConfigurationError` if it is not a public key, `StoreError`.
    """
    path = Path(root).absolute() / _TRUSTED / f"{key.keyid}.pem"
    files.write(path, key.pem)
    return path


def _create(folder: Path) -> SigningKey:
    from cachekit.bundle import signing

    key = signing.generate()
    # Trusted first: a key that signs and is not trusted would refuse its own bundles.
    trust(folder, key.public)
    files.write(folder / _PRIVATE, key.pem)
    return key


def _load(folder: Path) -> SigningKey | None:
    from cachekit.bundle.signing import SigningKey

    if not files.check_private(folder):
        return None
    path = folder / _PRIVATE
    try:
        pem = files.read(path, max_bytes=_MAX_PEM_BYTES)
    except NotFoundError:
        return None
    _check_own(path)
    key = SigningKey(pem)
    try:
        key.keyid  # noqa: B018  parses the key
    except ConfigurationError as exc:
        raise ConfigurationError(f"{path}: {exc}") from exc
    return key


def _check_own(path: Path) -> None:
    if os.name != "posix":
        return
    with files.reading(path):
        found = path.lstat()
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigurationError(
            f"{path} can be read by other users: run chmod 600 on it, or remove it for a new key"
        )
    if found.st_uid != os.geteuid():
        raise ConfigurationError(
            f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}: use another folder"
        )


def _public(path: Path) -> PublicKey:
    from cachekit.bundle.signing import PublicKey

    key = PublicKey(files.read(path, max_bytes=_MAX_PEM_BYTES))
    try:
        key.keyid  # noqa: B018  parses the key
    except ConfigurationError as exc:
        raise ConfigurationError(f"{path}: {exc}") from exc
    return key
