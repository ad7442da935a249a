"""What does a YAML text hold, and on which line does each value stand?

ruamel.yaml gives the nodes with their marks; the scalars are resolved here, because Envoy reads them by other rules
than YAML 1.2 does: its reader takes an unquoted y, n, yes, no, on or off for a boolean. Environment variables and
templates are not expanded. JSON is read as the YAML it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.nodes import Node as YamlNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scanner import RoundTripScanner

Scalar = str | int | float | bool | None
MAX_NODES = 500_000  # after aliases are expanded; a file of nested aliases would otherwise fill the memory
MAX_DEPTH = 100  # Envoy's own protobuf reader stops there too

_INT = re.compile(r"[-+]?[0-9]{1,300}|0o[0-7]{1,100}|0x[0-9a-fA-F]{1,100}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,4})?")
_SPECIAL = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_TRUE_11 = frozenset({"y", "yes", "on"})
_FALSE_11 = frozenset({"n", "no", "off"})


class TreeError(Exception):
    """The text is not one YAML document that can be looked at."""

    def __init__(self, line: int | None, message: str, cure: str) -> None:
        super().__init__(message)
        self.line, self.message, self.cure = line, message, cure


def _too_deep(line: int, cure: str) -> TreeError:
    return TreeError(line, f"is nested deeper than {MAX_DEPTH} levels", cure)


_FLATTEN = "close what is open, or flatten it"


class _BoundedScanner(RoundTripScanner):
    """Stops at the bracket that is one too many: the scanner looks far ahead of the composer, for each one again."""

    def fetch_flow_collection_start(self, *args: Any, **more: Any) -> None:
        if len(self.flow_context) > MAX_DEPTH:
            raise _too_deep(self.reader.line + 1, _FLATTEN)
        super().fetch_flow_collection_start(*args, **more)


class _BoundedComposer(Composer):
    """Stops before a document's depth becomes Python's."""

    _levels = -1  # the root's is 0

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader=loader)
        self.warn_double_anchors = False  # YAML allows them

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self._levels >= MAX_DEPTH:
            raise _too_deep(self.parser.peek_event().start_mark.line + 1, _FLATTEN)
        self._levels += 1
        node = super().compose_node(parent, index)
        self._levels -= 1
        return node


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it stands: its dotted path, and the 1-based line of its key or list item."""

    path: str
    line: int
    value: Scalar | dict[str, Node] | list[Node]

    @property
    def fields(self) -> dict[str, Node]:
        """The entries of a mapping; nothing for anything else."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[Node]:
        """The items of a list; nothing for anything else."""
        return self.value if isinstance(self.value, list) else []

    @property
    def text(self) -> str | None:
        return self.value if isinstance(self.value, str) else None

    def get(self, name: str) -> Node | None:
        """An entry by its snake_case name; Envoy reads the camelCase spelling too."""
        return self.fields.get(name) or self.fields.get(camel(name))

    def at(self, *names: str) -> Node | None:
        """The node at the end of a chain of names, None where it breaks off."""
        node: Node | None = self
        for name in names:
            node = node.get(name) if node is not None else None
        return node

    def list_at(self, *names: str) -> list[Node]:
        found = self.at(*names)
        return found.items if found is not None else []

    def plain(self) -> object:
        """The value without its places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


@dataclass(frozen=True, slots=True)
class Remark:
    """Something in the spelling that is worth a word: a repeated key, a YAML 1.1 boolean, a merge key ("<<")."""

    path: str
    line: int
    text: str
    first_line: int | None = None  # of the same key before; None: it is no repeated key


def compose(text: str) -> YamlNode:
    """Raises TreeError, with the line, for whatever is not one YAML document."""
    (root,) = _composed(text, lambda yaml, text: [yaml.compose(text)])
    if root is None or (isinstance(root, ScalarNode) and root.value == ""):
        raise TreeError(None, "is empty", "an own configuration needs at least `pools`")
    return root


def compose_all(text: str) -> list[YamlNode]:
    """All documents of a file, empty ones left out. Raises TreeError, with the line, for what is not YAML."""
    roots = _composed(text, lambda yaml, text: list(yaml.compose_all(text)))
    return [root for root in roots if root is not None and not (isinstance(root, ScalarNode) and root.value == "")]


def _composed(text: str, by: Callable[[YAML, str], list[YamlNode | None]]) -> list[YamlNode | None]:
    if "\t" in text:  # between YAML tokens a tab is a blank, but ruamel.yaml knows that only within a line
        text = _tabs_in_json(text)
    yaml = YAML(typ="rt", pure=True)
    yaml.Scanner, yaml.Composer = _BoundedScanner, _BoundedComposer
    try:
        return by(yaml, text)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else None
        raise TreeError(line, "has a character that YAML does not allow", "remove it") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise TreeError(mark.line + 1 if mark else None, *_syntax(error)) from None
    except (YAMLError, ValueError, LookupError, TypeError, AttributeError, AssertionError, NotImplementedError):
        raise TreeError(None, "is not YAML", "correct its syntax") from None


def build(root: YamlNode, *, envoy: bool, path: str = "") -> tuple[Node, list[Remark]]:
    """The tree of a composed document; `envoy`: unquoted y, n, yes, no, on, off are booleans, as Envoy reads them.
    `path`: what the paths in it begin with."""
    return _Builder(envoy).build(root, path)


class _Builder:
    def __init__(self, envoy: bool) -> None:
        self._envoy = envoy
        self._remarks: dict[tuple[int, str], Remark] = {}
        self._count = 0

    def build(self, root: YamlNode, path: str) -> tuple[Node, list[Remark]]:
        node = self._node(root, path, root.start_mark.line + 1, 0)
        return node, sorted(self._remarks.values(), key=lambda r: r.line)

    def _node(self, raw: YamlNode, path: str, line: int, depth: int) -> Node:
        self._count += 1
        if self._count > MAX_NODES:
            raise TreeError(line, "its aliases expand to too many values", "write them out, or use fewer")
        if depth > MAX_DEPTH:
            raise _too_deep(line, "does an alias contain itself?")
        if isinstance(raw, MappingNode):
            return Node(path, line, self._mapping(raw, path, depth))
        if isinstance(raw, SequenceNode):
            items = [
                self._node(item, _item_path(path, index, item), item.start_mark.line + 1, depth + 1)
                for index, item in enumerate(raw.value)
            ]
            return Node(path, line, items)
        return Node(path, line, self._scalar(raw, path))

    def _mapping(self, raw: MappingNode, path: str, depth: int) -> dict[str, Node]:
        out: dict[str, Node] = {}
        merged: list[Node] = []
        for key, value in raw.value:
            if not isinstance(key, ScalarNode):
                raise TreeError(key.start_mark.line + 1, "a key must be one word", "put it in quotes")
            if str(key.tag or "") == "!ignore":  # Envoy's way to have a place for anchors
                continue
            name, line = str(key.value), key.start_mark.line + 1
            node = self._node(value, f"{path}.{name}" if path else name, line, depth + 1)
            if name == "<<" and key.style is None:
                merged += node.items or [node]
                if self._envoy:
                    self._remarks[line, name] = Remark(path, line, name)
                continue
            if name in out:
                self._remarks[line, name] = Remark(node.path, line, name, first_line=out[name].line)
            out[name] = node
        for source in merged:
            for name, node in source.fields.items():
                out.setdefault(name, node)
        return out

    def _scalar(self, raw: YamlNode, path: str) -> Scalar:
        text = str(raw.value)
        if getattr(raw, "style", None):  # quoted, or a block
            return text
        lower = text.lower()
        if self._envoy and lower in _TRUE_11 | _FALSE_11 and text in (lower, lower.upper(), lower.capitalize()):
            at = raw.start_mark.line + 1
            self._remarks[at, text + path] = Remark(path, at, text)
            return lower in _TRUE_11
        return _plain(text, raw)


def _plain(text: str, raw: YamlNode) -> Scalar:
    """YAML 1.2's core schema, with an explicit `!!str` respected."""
    if str(raw.ctag or "").endswith(":str") and _explicit(raw):
        return text
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if _INT.fullmatch(text):
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def _explicit(raw: YamlNode) -> bool:
    return bool(raw.end_mark.index - raw.start_mark.index > len(str(raw.value)))


def _item_path(path: str, index: int, item: YamlNode) -> str:
    """List items are called by their name where they have one, so that a path survives reordering."""
    if isinstance(item, MappingNode):
        for key, value in item.value:
            if isinstance(key, ScalarNode) and key.value == "name" and isinstance(value, ScalarNode) and value.value:
                return f"{path}[{value.value}]"
    return f"{path}[{index}]"


def _tabs_in_json(text: str) -> str:
    """JSON may be indented with tabs; a JSON string never spans lines, so leading tabs are always blanks there."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    return re.sub(r"(?m)^[ \t]+", lambda match: match.group().replace("\t", " "), text)


def _syntax(error: MarkedYAMLError) -> tuple[str, str]:
    problem = (error.problem or error.context or "").strip()
    if "'\\t'" in problem:
        return "a tab is used as indentation, which YAML does not allow", "use spaces"
    if "expected a single document" in (error.context or "") or "another document" in problem:
        return "holds more than one YAML document", 'keep one, without "---" between'
    if "undefined alias" in problem:
        return f"is not YAML: {problem}", "define the anchor before its use"
    return f"is not YAML: {problem or 'syntax error'}", "correct it, or put the value in quotes"


def walk(node: Node) -> Iterator[Node]:
    """The node and everything under it."""
    yield node
    for child in (*node.fields.values(), *node.items):
        yield from walk(child)
