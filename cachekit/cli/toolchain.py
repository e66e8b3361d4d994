"""``cachekit toolchain``: this machine's part of a fingerprint, for planners on other machines."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from cachekit.cli import text
from cachekit.cli.options import Debug, Json
from cachekit.cli.output import Document, reporting
from cachekit.errors import UnsupportedError

if TYPE_CHECKING:
    from rich.console import Console


def toolchain(*, json: Json = False, debug: Debug = False) -> None:
    """Capture this machine's toolchain: torch, GPUs, CPU, flags, configuration.

    The JSON is what `cachekit.Toolchain.from_json` reads, so that a machine without a GPU can compute the fingerprints
    of one that has it.
    """
    with reporting(json=json, debug=debug) as out:
        need_torch()
        from cachekit.identity import Toolchain

        out.answer(Toolchain.current().data, _draw)


def need_torch() -> None:
    """Raises `UnsupportedError` where torch is not installed."""
    if find_spec("torch") is None:
        raise UnsupportedError("torch is not installed in this environment: install torch-cachekit[torch]")


def _draw(document: Document, console: Console) -> None:
    table = text.table("component", "value")
    for path, value in text.leaves("", document):
        text.row(table, path, text.value(value))
    console.print(table)
