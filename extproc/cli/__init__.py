"""The command line: a module a command."""

from extproc.cli.main import main

__all__ = ["main"]
