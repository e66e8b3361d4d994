"""The command line: the Typer application, and each verb registered on it. A verb is a module of the same name."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cachekit.cli.coverage import coverage
from cachekit.cli.demo import demo
from cachekit.cli.exit_codes import epilog
from cachekit.cli.explain import explain
from cachekit.cli.gc import gc
from cachekit.cli.ls import ls
from cachekit.cli.rebuild import rebuild
from cachekit.cli.show import show
from cachekit.cli.toolchain import toolchain
from cachekit.cli.verify import verify

VERBS = (demo, ls, show, coverage, verify, explain, toolchain, rebuild, gc)

app = typer.Typer(
    name="cachekit",
    help="Keep what torch.compile made, start warm, and see that it was.",
    epilog=epilog(),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _help(documentation: str) -> str:
    """The docstring with each paragraph in one line, because Typer keeps line ends as they are."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in documentation.split("\n\n"))


for verb in VERBS:
    app.command(help=_help(verb.__doc__ or ""), epilog=epilog())(verb)


def main() -> None:
    """Run the command line; never returns."""
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks must not end the listing it stands in.
        getattr(stream, "reconfigure", lambda **kwargs: None)(errors="backslashreplace")
    app(prog_name="cachekit")


def _version(wanted: bool) -> None:
    if wanted:
        from cachekit._version import __version__

        typer.echo(f"torch-cachekit {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Every verb takes --json, and reads its settings from the CACHEKIT_ variables."""
