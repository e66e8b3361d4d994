"""``cachekit demo``: cold and warm starts of real pipelines, side by side; ``cachekit.demo`` does all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cachekit.cli.exit_codes import ExitCode
from cachekit.cli.options import Debug, Json
from cachekit.cli.output import reporting


def demo(
    *,
    dir: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="FOLDER",
            help="Work in this folder, which must be empty or new, and leave everything there.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the temporary folder, and say where it is.")
    ] = False,
    pipeline: Annotated[
        list[str] | None,
        typer.Option(
            "--pipeline",
            metavar="NAME",
            help="Only this one; may be given again. Default: all.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Start real pipelines with random weights cold and warm, and compare.

    Each start is a process of its own with empty caches. Takes about two minutes on two cores, downloads nothing, and
    leaves nothing behind. Exits with 1 if something covered was compiled again, or an image differs by a bit.
    """
    with reporting(json=json, debug=debug) as out:
        from cachekit.demo.main import run

        out.code = ExitCode(run(directory=dir, keep=keep, pipelines=pipeline or None, as_json=json))
