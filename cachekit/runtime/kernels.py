"""C++ kernels and ISA probes: what a Mega-cache bundle lacks on a CPU, where it saves only a third without them.

torch keeps C++ *source* in its artifacts and looks for ``<hash>.main.so`` beside it; in an empty folder it also
compiles up to ten small probes to learn which vector ISA the compiler supports. Both are kept as ``kernel``
artifacts: a kernel under everything that its machine code depends on, a probe's answer (``<sha256>.isa``, one byte)
under the same less the command line. Neither is installed on a host that differs in any of them; a host without any
compiler differs in none (``compiler``).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cachekit.bundle import Artifact, Entry, Identity, Requires, requires
from cachekit.errors import CachekitError, StoreError
from cachekit.identity import host
from cachekit.logs import Log
from cachekit.runtime import compiler, recorder, torch_private
from cachekit.store.files import describe

log = Log("cachekit")

PROBE_SUFFIX = ".isa"
_SOURCE_SUFFIX = "main.cpp"

_main_source = threading.local()
_answers: dict[str, bool] = {}
"""Probe digest -> answer: what this process knows of the compiler, from its own probes or from bundles."""
_learned: dict[str, Requires] = {}
"""Key -> what it was installed under: kernels by path, and probes."""


def watch(stack: contextlib.ExitStack) -> None:
    """Attribute kernels to scopes, answer known probes, skip needless header compiles, do without a compiler.

    Undone with ``stack``.
    """
    cache = torch_private.code_cache()
    _patch(stack, cache, "write", _watched_write(cache.write))
    if hasattr(cache, "_precompile_header"):
        _patch(stack, cache, "_precompile_header", _lazy_header(cache._precompile_header))
    lookup = torch_private.compiler_lookup()
    _patch(stack, lookup, "get_cpp_compiler", compiler.answering(lookup.get_cpp_compiler))
    isa = torch_private.isa_class()
    _patch(stack, isa, "check_build", _remembered_probe(isa.check_build))


def _patch(stack: contextlib.ExitStack, owner: Any, name: str, replacement: Any) -> None:
    stack.callback(setattr, owner, name, owner.__dict__[name])
    setattr(owner, name, replacement)


def _watched_write(original: Any) -> Any:
    @functools.wraps(original)
    def write(content: Any, extension: str, *args: Any, **kwargs: Any) -> Any:
        key, path = original(content, extension, *args, **kwargs)
        if extension == _SOURCE_SUFFIX:
            library = Path(path).with_suffix(".so")
            if compiler.known_by_name() and not library.exists():
                raise torch_private.no_compiler()
            _main_source.library = library
            recording = recorder.current()
            if recording is not None:
                relative = f"{library.parent.name}/{library.name}"
                recording.add_kernel(relative, compiled=not library.exists())
        return key, path

    return write


def _lazy_header(original: Any) -> Any:
    @functools.wraps(original)
    def precompile_header(*args: Any, **kwargs: Any) -> Any:
        library: Path | None = getattr(_main_source, "library", None)
        if library is not None and library.exists():
            return None  # nothing is going to be compiled: a header would cost a compiler run for nothing
        if shutil.which("openssl") is None:
            return None  # torch hashes the header with that program, and fails without it
        return original(*args, **kwargs)

    return precompile_header


def _remembered_probe(original: Any) -> Any:
    @functools.wraps(original)
    def check_build(self: Any, code: str) -> bool:
        digest = hashlib.sha256(f"{code}\0{self.build_arch_flags()}".encode()).hexdigest()
        if digest not in _answers:
            if compiler.known_by_name():
                raise torch_private.no_compiler()
            _answers[digest] = bool(original(self, code))
        return _answers[digest]

    return check_build


@functools.cache
def host_requirements() -> Mapping[str, str]:
    """What probes depend on: architecture, the whole CPU flag set, compiler and libc. Runs ``c++ -v`` once.

    Raises whatever torch raises when there is no C++ compiler.
    """
    if compiler.known_by_name():
        raise torch_private.no_compiler()
    return {**_machine(), "compiler": _short(torch_private.compiler_version())}


def _machine() -> dict[str, str]:
    return {"arch": host.arch(), "cpu_flags": host.flags_digest(), "libc": host.libc()}


def kernel_requirements() -> Mapping[str, str]:
    """:func:`host_requirements` and the hash of the C++ command line; may run probes that are not yet known."""
    return {**host_requirements(), **command_line()}


def command_line() -> Mapping[str, str]:
    """The hash of the C++ command line; may run probes that are not yet known, and raises what they raise."""
    return {"command": _short(torch_private.kernel_command_line())}


def _needed_by(paths: Iterable[str]) -> dict[str, Requires]:
    """What each kernel requires: what it was installed under, and for those compiled here what this host is."""
    paths = list(paths)
    here = () if _learned.keys() >= set(paths) else requires(kernel_requirements())
    return {path: _learned.get(path, here) for path in paths}


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def collect(paths: Iterable[str], folder: Path) -> list[Artifact]:
    """Read the named kernels from the cache folder, with all that is known of the ISA probes.

    A kernel that the process compiled into another folder is read from where it was loaded. One that is nowhere is
    left out with a warning: what needs it will be compiled again.
    """
    paths = sorted(paths)
    if not paths:
        return []
    wanted = _needed_by(paths)
    found = []
    for path in paths:
        data = _read(folder / path) or _read(_loaded_from(path))
        if data is None:
            log.warning("kernel %s is not saved: its file is gone", path)
        else:
            found.append(Artifact("kernel", path, data, requires=wanted[path]))
    return found + probe_answers()


def _read(path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path is not None else None
    except OSError:
        return None


def _loaded_from(path: str) -> Path | None:
    """The file that a kernel's extension module was loaded from; torch names the module ``<key>.<function>``."""
    key = Path(path).name.partition(".")[0]
    files = (
        getattr(module, "__file__", None)
        for name, module in list(sys.modules.items())
        if name.startswith(f"{key}.")
    )
    return next((Path(file) for file in files if file), None)


def probe_answers() -> list[Artifact]:
    """What this process knows of the compiler's vector ISAs, one artifact an answer."""
    keys = {digest + PROBE_SUFFIX: answer for digest, answer in sorted(_answers.items())}
    here = () if _learned.keys() >= keys.keys() else requires(host_requirements())
    return [
        Artifact("kernel", key, b"1" if answer else b"0", requires=_learned.get(key, here))
        for key, answer in keys.items()
    ]


def learn(artifacts: Iterable[Artifact]) -> int:
    """Take over the answers of probe artifacts; how many there were. Own answers are kept."""
    count = 0
    for artifact in artifacts:
        if artifact.key.endswith(PROBE_SUFFIX):
            digest = artifact.key.removesuffix(PROBE_SUFFIX)
            if digest not in _answers:
                _answers[digest] = artifact.data == b"1"
                _remember(artifact)
            count += 1
    return count


def _remember(artifact: Artifact) -> None:
    if artifact.requires:
        _learned[artifact.key] = artifact.requires


def write_libraries(artifacts: Iterable[Artifact], folder: Path) -> int:
    """Put compiled kernels where torch looks for them; how many were written. A file of the same size is left alone.

    One of another size is not what it should be, cut short on a full disk for example: torch would load it as it is.
    Raises StoreError with the path and the errno when one cannot be written.
    """
    written = 0
    for artifact in artifacts:
        if artifact.key.endswith(PROBE_SUFFIX):
            continue
        target = folder / artifact.key
        try:
            if target.exists() and target.stat().st_size == len(artifact.data):
                continue
            _write_library(target, artifact.data)
        except OSError as exc:
            raise StoreError(f"cannot write kernel {target}: {describe(exc)}") from exc
        _remember(artifact)
        written += 1
    return written


def _write_library(target: Path, data: bytes) -> None:
    """In one step: torch, or another thread, finds it whole or not at all."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        temporary.write_bytes(data)
        temporary.chmod(0o700)
        temporary.replace(target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def known_host() -> Mapping[str, str]:
    """:func:`host_requirements`, without the compiler where there is none or torch cannot tell."""
    try:
        return host_requirements()
    except (CachekitError, OSError, RuntimeError):
        return _machine()


def hosts(entries: Iterable[Entry]) -> list[tuple[Mapping[str, str], list[Entry]]]:
    """What this host answers to the requirements of kernels, and which of them are to be asked with it.

    With a compiler there is one answer. Without, no compiler contradicts the one that a kernel was made with: one
    answer for each, the most used first, so that kernels that go together come from one.
    """
    entries = list(entries)
    if not compiler.is_missing():
        return [(known_host(), entries)]
    machine = _machine()
    return [
        ({**machine, "compiler": maker}, [e for e in entries if ("compiler", maker) in e.requires])
        for maker in compiler.makers(entry.requires for entry in entries)
    ]


def discard_unloadable(artifacts: Iterable[Artifact], folder: Path) -> dict[str, str]:
    """Remove installed kernels that the dynamic loader refuses; why, by key."""
    refused = {}
    for artifact in artifacts:
        error = compiler.load_error(folder / artifact.key)
        if error is not None:
            refused[artifact.key] = error
            _learned.pop(artifact.key, None)
            (folder / artifact.key).unlink(missing_ok=True)
    return refused


def identities(paths: Iterable[str]) -> dict[str, str]:
    """Identities of kernels on this host by path, without reading them."""
    wanted = _needed_by(paths)
    return {path: Identity("kernel", path, "", needed).id for path, needed in wanted.items()}
