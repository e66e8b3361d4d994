"""The arguments and options that verbs share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

COMMON = "Common options"

Dir = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="FOLDER",
        help="Where bundles and the manifest are kept. Default: CACHEKIT_DIR, else the user's cache folder.",
        show_default=False,
        rich_help_panel=COMMON,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAME",
        help="Which part of the store is meant. Default: CACHEKIT_NAMESPACE, else local.",
        show_default=False,
        rich_help_panel=COMMON,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="One JSON document on standard output, also for an error; everything else goes to standard error.",
        rich_help_panel=COMMON,
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Log each decision, and show the traceback of an error.",
        rich_help_panel=COMMON,
    ),
]
Id = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A fingerprint id, or the beginning of one if no other starts so.",
        show_default=False,
    ),
]
OptionalId = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="A fingerprint id or the beginning of one. Default: every fingerprint.",
        show_default=False,
    ),
]
