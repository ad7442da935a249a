#!/usr/bin/env python3
"""Has anything that is installed beside this Python a known vulnerability? `make audit`.

pip-audit asks an advisory database: PyPI's own, or, where that says nothing, OSV. A vulnerability that is not in
audit-ignore.txt fails. That no database can be asked (no network, or an index without advisories) does not, and neither
does one that is too slow: it is told, and nothing is known then.

Exit status: 0 none, or not known; 1 a vulnerability, or an entry of audit-ignore.txt that cannot be read.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

IGNORED = Path(__file__).with_name("audit-ignore.txt")
DATABASES = ("pypi", "osv")
TOTAL_S = 240.0  # for all of it


@dataclass
class Report:
    """What a database said."""

    audited: int = 0
    unknown: list[str] = field(default_factory=list)  # packages that it does not have
    found: list[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    # package and version, id, other names of it, versions without it


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    try:
        ignored = dict(_ignored(options.ignore))
    except ValueError as error:
        _say(f"audit: {error}")
        return 1
    until_s = time.monotonic() + options.seconds
    reasons = []
    for database in options.database or DATABASES:
        found = _ask(database, options, until_s - time.monotonic())
        if isinstance(found, Report):
            return _judge(database, found, ignored)
        reasons.append(f"{database}: {found}")
    _say(f"audit: no advisory database could be asked, so nothing is known ({'; '.join(reasons)})")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="audit", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--database", action="append", choices=DATABASES, help="ask this one alone; may be repeated")
    parser.add_argument("--osv-url", help="another address of OSV")
    parser.add_argument("--requirement", type=Path, help="audit the pinned packages of a file, not what is installed")
    parser.add_argument("--ignore", type=Path, default=IGNORED, help="default: audit-ignore.txt beside this script")
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help="for all of it; default: %(default)g")
    return parser.parse_args(arguments)


def _ignored(file: Path) -> Iterator[tuple[str, str]]:
    """Id and reason. Raises ValueError for an entry without a reason."""
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if text:
            name, _, reason = text.partition(" ")
            if not reason.strip():
                raise ValueError(f"{file}:{number}: {name} has no reason; write `ID why it does no harm here`")
            yield name, reason.strip()


def _ask(database: str, options: argparse.Namespace, seconds: float) -> Report | str:
    """A text says why nothing is known."""
    if seconds <= 0:
        return "no time is left"
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", database, "--format", "json"]
        command += ["--output", str(answer), "--progress-spinner", "off", "--aliases", "on", "--timeout", "15"]
        command += ["--osv-url", options.osv_url] if options.osv_url and database == "osv" else []
        if options.requirement is not None:
            command += ["--requirement", str(options.requirement), "--no-deps", "--disable-pip"]
        else:
            command += ["--skip-editable"]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return f"no answer within {seconds:.0f} s"
        try:
            report = _report(json.loads(answer.read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            lines = [line for line in ended.stderr.splitlines() if line.strip()]
            return f"pip-audit ended with {ended.returncode}: {lines[-1].strip()[:200] if lines else 'it said nothing'}"
    return report if report.audited else "it knows none of the packages"


def _report(document: Mapping[str, Any]) -> Report:
    report = Report()
    for package in document["dependencies"]:
        if "vulns" not in package:
            report.unknown.append(package["name"])
            continue
        report.audited += 1
        for each in package["vulns"]:
            versions = tuple(each["fix_versions"])
            name = f"{package['name']} {package['version']}"
            report.found.append((name, each["id"], tuple(each.get("aliases") or ()), versions))
    return report


def _judge(database: str, report: Report, ignored: Mapping[str, str]) -> int:
    used, bad = set(), 0
    for package, name, aliases, versions in report.found:
        known = [each for each in (name, *aliases) if each in ignored]
        used.update(known)
        if known:
            _say(f"audit: {package}: {name} is ignored: {ignored[known[0]]}")
            continue
        bad += 1
        cure = f"fixed in {', '.join(versions)}" if versions else "no version without it is known"
        also = f" ({', '.join(aliases)})" if aliases else ""
        _say(f"audit: {package}: {name}{also}; {cure}")
    for name in ignored.keys() - used:
        _say(f"audit: {name} stands in audit-ignore.txt and is not found any more; remove it")
    unknown = f"; {len(report.unknown)} it does not know: {', '.join(sorted(report.unknown))}" if report.unknown else ""
    _say(f"audit: {report.audited} packages, {bad} vulnerabilities ({database}{unknown})")
    if bad:
        _say("audit: raise the version in pyproject.toml, or write the id with a reason into .ci/audit-ignore.txt")
    return 1 if bad else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
