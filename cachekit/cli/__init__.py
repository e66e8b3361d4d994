"""The command line. One module per verb, each thin over the library; nothing heavy is imported before a verb needs it.

from cachekit.cli import app     # the Typer application, for tests and documentation
"""

from cachekit.cli.app import app, main

__all__ = ["app", "main"]
