"""What is wrong with a file, the mistakes that Envoy itself would accept included?"""

from __future__ import annotations

from pathlib import Path

from extproc.config import rules
from extproc.config.codes import CODES, Code, Finding
from extproc.config.load import Loaded, load
from extproc.config.manifests import rules as _manifest_rules  # noqa: F401  (it defines codes)
from extproc.config.problems import Problem
from extproc.config.profile_file import profile_findings
from extproc.config.view import view_of


def check(source: Path | str | bytes | Loaded, name: str | None = None) -> tuple[Problem, ...]:
    """All problems of a file, those of profiles that it names included, in the order of its lines. Never raises for
    what the file holds."""
    loaded = source if isinstance(source, Loaded) else load(source, name)
    problems = dict.fromkeys((*loaded.problems, *(f.problem(loaded.name) for f in profile_findings(loaded))))
    if loaded.kind != "envoy" or loaded.tree is None:
        return tuple(sorted(problems, key=lambda p: p.line or 0))
    view = view_of(loaded.tree, loaded.settings)
    spoiled = {path for finding in view.findings for path in _paths(finding)}
    found = [*view.findings, *(finding for finding in rules.findings(view) if finding.path not in spoiled)]
    problems |= dict.fromkeys(finding.problem(loaded.name) for finding in found)
    return tuple(sorted(problems, key=lambda p: (p.line or 0, p.field, p.code, p.message)))


def _paths(finding: Finding) -> tuple[str, ...]:
    """A field that cannot be read, and the one probably meant by a misspelt name: what rules say of them is noise."""
    meant = (finding.cure or "").partition('"')[2].rpartition('"')[0]
    return finding.path, f"{finding.path.rpartition('.')[0]}.{meant}"


def all_codes() -> list[Code]:
    """Every code that a problem can have, by name."""
    return [CODES[name] for name in sorted(CODES)]
