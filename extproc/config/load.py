"""What does a configuration file tell the service: an envoy.yaml, or a file of our own schema?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from extproc.config import codes, pools, schema
from extproc.config.codes import Finding
from extproc.config.problems import ConfigError, Problem, Severity, suggest
from extproc.config.reading import not_yaml, repeated_keys, text_of
from extproc.config.settings import Settings
from extproc.config.tree import Node, Remark, TreeError, build, compose
from extproc.endpoint import Address, split_host_port

Kind = Literal["envoy", "own"]
UNREADABLE = frozenset({codes.FILE_UNREADABLE.name, codes.FILE_NOT_TEXT.name})  # codes of files that are not read
_BOOTSTRAP = frozenset(
    {"static_resources", "staticResources", "dynamic_resources", "dynamicResources", "node", "admin"}
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file as read. `settings` is None exactly when `problems` holds an error."""

    name: str
    kind: Kind | None  # None: it could not be told
    settings: Settings | None
    problems: tuple[Problem, ...]
    tree: Node | None  # None: not even YAML

    @property
    def readable(self) -> bool:
        """The file could be opened and is text; what it says may still be wrong."""
        return not any(p.code in UNREADABLE for p in self.problems)


def load(source: Path | str | bytes, name: str | None = None) -> Loaded:
    """Read a file (a Path), or a text; `name` is what problems call it. Never raises for what the file holds."""
    shown = name if name is not None else (str(source) if isinstance(source, Path) else "configuration")
    text = text_of(source)
    return _failed(shown, text) if isinstance(text, Finding) else _load_text(text, shown)


def read_settings(path: Path) -> Settings:
    """The settings to run with. Raises ConfigError, with all problems, when the file has an error."""
    loaded = load(path)
    if loaded.settings is None:
        raise ConfigError(loaded.problems)
    return loaded.settings


def _failed(name: str, finding: Finding) -> Loaded:
    return Loaded(name, None, None, (finding.problem(name),), None)


def _load_text(text: str, name: str) -> Loaded:
    try:
        root = compose(text)
        tree, remarks = build(root, envoy=False)
        kind = kind_of(tree)
        if kind == "envoy":
            tree, remarks = build(root, envoy=True)
    except TreeError as error:
        finding = not_yaml(error)
        return _failed(name, replace(finding, code=codes.FILE_EMPTY) if error.message == "is empty" else finding)
    if tree.value is None:
        return _failed(name, Finding(codes.FILE_EMPTY, None, "is empty"))
    if kind is None:
        what = "a list" if isinstance(tree.value, list) else "a single value"
        return _failed(name, Finding(codes.FILE_NOT_A_MAPPING, tree, f"has {what} at the top"))
    findings = repeated_keys(remarks) + [_spelling(remark) for remark in remarks if remark.first_line is None]
    settings_tree = tree
    if kind == "envoy":
        settings_tree, more = pools.settings_tree(tree)
        findings += more
    settings, more = schema.validate(settings_tree)
    findings += more
    if settings is not None:
        findings += _across(settings, settings_tree, kind)
    problems = tuple(sorted({f.problem(name): None for f in findings}, key=lambda p: p.line or 0))
    if any(problem.severity is Severity.ERROR for problem in problems):
        settings = None
    return Loaded(name, kind, settings, problems, tree)


def _spelling(remark: Remark) -> Finding:
    """What Envoy reads otherwise than it is meant."""
    place = Node(remark.path, remark.line, None)
    if remark.text == "<<":
        return Finding(codes.YAML_MERGE, place, 'has a merge key "<<"')
    word = remark.text
    value = "true" if word.lower() in ("y", "yes", "on") else "false"
    cure = f'write "{word}" in quotes, or {value}'
    return Finding(codes.YAML_BOOLEAN, place, f"Envoy reads an unquoted {word} as {value}", cure=cure)


def kind_of(tree: Node) -> Kind | None:
    """An Envoy bootstrap is told by its top-level keys; any other mapping is ours; a non-mapping is neither."""
    if not isinstance(tree.value, dict):
        return None
    # Both kinds may have `admin`: ours says where to listen, beside sections that no bootstrap has.
    ours = tree.value.keys() & Settings.model_fields.keys() - {"admin"}
    admin = tree.get("admin")
    ours_by_admin = admin is not None and isinstance(admin.value, dict) and "listen" in admin.value
    theirs = _BOOTSTRAP & tree.value.keys() - ({"admin"} if ours or ours_by_admin else set())
    return "envoy" if theirs else "own"


def _across(settings: Settings, tree: Node, kind: Kind) -> list[Finding]:
    """Mistakes that no single setting has."""
    findings: list[Finding] = []
    names = sorted(settings.pools)
    if not names and kind == "own":
        cure = "list the servers under `pools.<name>.endpoints`"
        findings.append(Finding(codes.POOL_MISSING, tree, "no pool is set", "pools", cure))
    if settings.default_pool is not None and settings.default_pool not in settings.pools:
        message = f'there is no pool "{settings.default_pool}"'
        findings.append(
            Finding(codes.POOL_DEFAULT, tree, message, "default_pool", suggest(settings.default_pool, names))
        )
    if settings.default_pool is None and len(names) > 1:
        message = "is not set, and there are several pools"
        findings.append(Finding(codes.POOL_DEFAULT, tree, message, "default_pool", suggest("", names)))
    pool_nodes = tree.fields["pools"].fields if "pools" in tree.fields else {}
    for name, pool in settings.pools.items():
        node = pool_nodes[name]
        if not pool.endpoints and pool.discovery is None:
            listed = node.fields.get("endpoints")
            message, cure = f'pool "{name}" has no endpoints', "list them, or set discovery: where they come from"
            if listed is not None:
                findings.append(Finding(codes.POOL_EMPTY, listed, message))
            else:
                findings.append(Finding(codes.POOL_EMPTY, node, message, "endpoints", cure))
        seen: dict[str, int] = {}
        for endpoint, place in zip(pool.endpoints, node.list_at("endpoints"), strict=True):
            key, at = _identity(endpoint.address), place.fields["address"]
            if key in seen:
                message = f"{endpoint.address} is in the pool already, on line {seen[key]}"
                findings.append(Finding(codes.ENDPOINT_DUPLICATE, at, message))
            seen.setdefault(key, at.line)
    return findings


def _identity(text: str) -> str:
    try:
        return Address.parse(text).text
    except ValueError:
        host, port = split_host_port(text)
        return f"{host.lower().rstrip('.')}:{port}"
