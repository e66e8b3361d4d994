"""What a verb says, and how it ends: tables or one JSON document, one line per error, an exit status.

Every verb works inside ``reporting``. It makes one JSON document of its answer and hands it over with the function
that draws it, so that people and programs are told the same.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from cachekit.cli.exit_codes import ExitCode
from cachekit.cli.text import printable
from cachekit.errors import CachekitError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Document = Mapping[str, Any]
"""Plain JSON values."""

_UNFOLDED = 10_000
"""Columns where there is no terminal: what a pipe gets is for grep and awk, so no line is folded or cut."""


class Output:
    """Standard output and standard error of one verb, and the status it will end with."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.code = ExitCode.FINE
        self._answered = False

    def answer(self, document: Document, draw: Callable[[Document, Console], None]) -> None:
        """Give the verb's one answer: as JSON, or drawn for people."""
        self._answered = True
        if self.json:
            _print_json(document)
        else:
            draw(document, _console(sys.stdout))

    def note(self, text: str) -> None:
        """Say something beside the answer, in one line on standard error."""
        sys.stderr.write(f"{printable(text)}\n")

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """A progress bar on standard error that vanishes when done; nothing where that is no terminal."""
        from rich.progress import Progress

        console = _console(sys.stderr)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            yield bar

    def fail(self, error: Exception) -> None:
        """End with one line for ``error``, and with the status that is its own."""
        self.code = ExitCode.of(error)
        if isinstance(error, CachekitError):
            code, message, line = error.code, str(error), error.diagnostics()
        else:
            code, message = "defect", f"{type(error).__name__}: {error}"
            line = f"{code}: {message} (--debug shows where)"
        self.note(line)
        if self.json and not self._answered:
            _print_json({"error": {"code": code, "message": message, "exit_status": int(self.code)}})


@contextmanager
def reporting(*, json: bool, debug: bool) -> Iterator[Output]:
    """Run a verb: whatever it raises becomes one line and an exit status, and a traceback only with ``debug``."""
    out = Output(json=json)
    with _logging(debug=debug):
        try:
            yield out
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise  # Typer's own ways to end; nobody reads a broken pipe
        except Exception as exc:  # noqa: BLE001  the outermost rim: people get a line, not a traceback
            if debug:
                traceback.print_exc(file=sys.stderr)
            out.fail(exc)
    if out.code:
        raise typer.Exit(int(out.code))


def _print_json(document: Document) -> None:
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def _console(file: Any) -> Console:
    from rich.console import Console

    console = Console(file=file, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _UNFOLDED
    return console


@contextmanager
def _logging(*, debug: bool) -> Iterator[None]:
    """The library's log on standard error with ``debug``, else nowhere: verbs tell the same things as an answer."""
    logger = logging.getLogger("cachekit")
    handler = logging.StreamHandler(sys.stderr) if debug else logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if debug else logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
