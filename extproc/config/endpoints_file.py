"""Which servers does a file of endpoints list?

It is YAML or JSON: a list, or a mapping with `endpoints`. An item is `host:port`, or a section with `address` and the
options of an endpoint, or a group: `targets` (a list of host:port) with options that hold for all of them. That is also
the form of Prometheus' file_sd, whose `labels` are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from extproc.config import codes, schema
from extproc.config.codes import Finding
from extproc.config.problems import Problem
from extproc.config.reading import not_yaml, repeated_keys, text_of
from extproc.config.settings import EndpointSettings
from extproc.config.tree import Node, TreeError, build, compose

_NOBODY = "write [] if the pool shall have no servers"
_POOL = "file"  # any name: the tree is given the shape of `Settings`


def read(raw: bytes, name: str) -> tuple[tuple[EndpointSettings, ...] | None, tuple[Problem, ...]]:
    """The endpoints in the order of the file, or None and what is wrong. `name` is what problems call the file.

    An empty file is wrong, an empty list is not: the first may be a write that was cut off.
    """
    return _named(_read(raw), name)


def problems_of(path: Path) -> tuple[Problem, ...]:
    """What is wrong with a file; that it cannot be read, too."""
    return _named(_read(path), str(path))[1]


def _named(
    found: tuple[EndpointSettings, ...] | list[Finding], name: str
) -> tuple[tuple[EndpointSettings, ...] | None, tuple[Problem, ...]]:
    if isinstance(found, tuple):
        return found, ()
    return None, tuple({finding.problem(name): None for finding in found})


def _read(source: Path | bytes) -> tuple[EndpointSettings, ...] | list[Finding]:
    text = text_of(source)
    if isinstance(text, Finding):
        return [text]
    try:
        tree, remarks = build(compose(text), envoy=False)
    except TreeError as error:
        if error.message == "is empty":
            return [_empty(None)]
        return [not_yaml(error)]
    twice = repeated_keys(remarks)
    if twice:
        return twice
    listed = _list_of(tree)
    if isinstance(listed, Finding):
        return [listed]
    endpoints = Node(listed.path, listed.line, [entry for item in listed.items for entry in _entries(item)])
    pool = Node(listed.path, listed.line, {"endpoints": endpoints})
    pools = Node(listed.path, listed.line, {_POOL: pool})
    settings, findings = schema.validate(Node("", tree.line, {"pools": pools}))
    return settings.pools[_POOL].endpoints if settings is not None else findings


def _empty(node: Node | None) -> Finding:
    return Finding(codes.FILE_EMPTY, node, "is empty", cure=_NOBODY)


def _list_of(tree: Node) -> Node | Finding:
    """The node of the list of endpoints."""
    if isinstance(tree.value, list):
        return tree
    if tree.value is None:
        return _empty(None)
    if not isinstance(tree.value, dict):
        return Finding(codes.SETTING_VALUE, tree, "holds a single value", cure="list the servers as - host:port")
    listed = tree.fields.get("endpoints")
    for key, node in tree.fields.items():
        if key != "endpoints":
            return Finding(codes.SETTING_UNKNOWN, node, "unknown setting", cure="list the servers under `endpoints`")
    if listed is None:
        return Finding(codes.SETTING_MISSING, tree, "is not set", "endpoints", _NOBODY)
    if listed.value is None:
        return _empty(listed)
    if not isinstance(listed.value, list):
        return Finding(codes.SETTING_VALUE, listed, "is not a list", cure='start each item with "- "')
    return listed


def _entries(item: Node) -> Iterator[Node]:
    """The sections of `EndpointSettings` that an item comes to; what is wrong with them the schema tells."""
    if isinstance(item.value, str):
        yield Node(item.path, item.line, {"address": item})
        return
    targets = item.fields.get("targets")
    if targets is None or "address" in item.fields:
        yield item
        return
    options = {key: node for key, node in item.fields.items() if key not in ("targets", "labels")}
    for target in targets.items if isinstance(targets.value, list) else [targets]:
        yield Node(item.path, item.line, {**options, "address": target})
