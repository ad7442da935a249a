"""`extproc check`: what is wrong with these configuration files and Kubernetes manifests?

Exit status: 0 without errors (warnings may be there), 1 with errors, 2 when a file cannot be read.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from extproc.config import endpoints_file
from extproc.config.check import all_codes
from extproc.config.check import check as check_config
from extproc.config.load import UNREADABLE, load
from extproc.config.manifests.check import check_manifests
from extproc.config.problems import Problem, Severity
from extproc.config.settings import DrainSettings
from extproc.pool.deadline import longest_s


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


def check(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE...", help="An envoy.yaml, or a file of our own settings.")
    ] = None,
    kubernetes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Kubernetes manifests of vLLM servers, - for standard input; may be given several times, and they are"
            " looked at together. The section drain of a FILE... given beside counts, else its defaults.",
        ),
    ] = None,
    servers: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A file of servers, as of discovery.file; may be given several times."),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="How problems are printed.")] = Format.TEXT,
    rules: Annotated[bool, typer.Option("--rules", help="List every code with its reason and cure, and stop.")] = False,
) -> None:
    """Say what is wrong with configuration files, mistakes that Envoy accepts included; of files of servers; and
    with Kubernetes manifests."""
    if rules:
        _print_codes(format_)
        raise typer.Exit(0)
    files, manifests, lists = files or [], kubernetes or [], servers or []
    if not files and not manifests and not lists:
        raise typer.BadParameter("name at least one file", param_hint="FILE")
    problems: list[Problem] = []
    drains: list[DrainSettings] = []
    for file in files:
        loaded = load(file)
        problems += check_config(loaded)
        if loaded.settings is not None:
            drains.append(loaded.settings.drain)
    for path in lists:
        problems += endpoints_file.problems_of(path)
    if manifests:
        bounds = max([drain.bounds for drain in drains or [DrainSettings()]], key=longest_s)
        problems += check_manifests([_source(name) for name in manifests], bounds)
    if format_ is Format.JSON:
        sys.stdout.write(json.dumps([_as_json(p) for p in problems], indent=2) + "\n")
    else:
        _print(problems, len(files) + len(manifests) + len(lists))
    if any(p.code in UNREADABLE for p in problems):
        raise typer.Exit(2)
    raise typer.Exit(1 if any(p.severity is Severity.ERROR for p in problems) else 0)


def _source(name: str) -> tuple[str, Path | bytes]:
    return ("standard input", sys.stdin.buffer.read()) if name == "-" else (name, Path(name))


def _as_json(problem: Problem) -> dict[str, object]:
    return {name: getattr(problem, name) for name in ("severity", "file", "line", "field", "message", "cure", "code")}


def _print(problems: list[Problem], files: int) -> None:
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:  # one plain line a problem, for grep
        for problem in problems:
            sys.stdout.write(f"{problem.severity}: {problem} [{problem.code}]\n")
    else:
        for problem in problems:
            colour = "red" if problem.severity is Severity.ERROR else "yellow"
            place = problem.file if problem.line is None else f"{problem.file}:{problem.line}"
            field = f" [bold]{escape(problem.field)}[/]:" if problem.field else ""
            cure = f"; [green]{escape(problem.cure)}[/]" if problem.cure else ""
            console.print(
                f"[{colour}]{problem.severity}[/] [cyan]{escape(place)}[/]:{field} {escape(problem.message)}{cure}"
                f" [dim]{escape(f'[{problem.code}]')}[/]"
            )
    errors = sum(p.severity is Severity.ERROR for p in problems)
    console.print(f"{files} file{'s' * (files != 1)}: {errors} error{'s' * (errors != 1)},", end=" ")
    warnings = len(problems) - errors
    console.print(f"{warnings} warning{'s' * (warnings != 1)}")


def _print_codes(format_: Format) -> None:
    codes = all_codes()
    if format_ is Format.JSON:
        rows = [{"code": c.name, "severity": c.severity, "why": c.why, "cure": c.cure} for c in codes]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    for code in codes:
        cure = f" Cure: {code.cure}." if code.cure else ""
        sys.stdout.write(f"{code.name} ({code.severity}): {code.why}{cure}\n")


if __name__ == "__main__":
    typer.run(check)
