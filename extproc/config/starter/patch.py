"""How is a value in a YAML text replaced, with every other byte left as it was?"""

from __future__ import annotations

from ruamel.yaml.nodes import MappingNode, SequenceNode
from ruamel.yaml.nodes import Node as YamlNode

from extproc.config.tree import compose

Step = str | int
"""Into a mapping by a key; into a list by a position, or by the `name` of one of its items."""


class Patch:
    """A text and what is to be replaced in it. Paths that lead nowhere raise LookupError."""

    def __init__(self, text: str) -> None:
        """Raises TreeError for what is not YAML."""
        self._text = text
        self._root = compose(text)
        self._edits: list[tuple[int, int, str]] = []

    def value(self, new: str, *path: Step) -> None:
        """Replace a value that ends where it is written: a scalar, or a collection in brackets."""
        node = self._at(path)
        self._edits.append((node.start_mark.index, node.end_mark.index, new))

    def rest_of_line(self, new: str, *path: Step) -> None:
        """Replace such a value and what follows on its line: a comment that explains the old one."""
        node = self._at(path)
        end = self._text.find("\n", node.end_mark.index)
        self._edits.append((node.start_mark.index, end if end >= 0 else len(self._text), new))

    def items(self, new: str, *path: Step) -> None:
        """Replace all items of a block list, from behind the first dash to the end of the last item."""
        found = self._at(path)
        if not isinstance(found, SequenceNode) or found.flow_style or not found.value:
            raise LookupError(f"no block list with items at {path}")
        self._edits.append((found.value[0].start_mark.index, _end(found.value[-1]), new))

    def text(self) -> str:
        """The text with all of it replaced. Raises ValueError for replacements that overlap."""
        out, position = [], 0
        for start, end, new in sorted(self._edits):
            if start < position:
                raise ValueError(f"two replacements overlap at {self._text[start:end][:40]!r}")
            out += [self._text[position:start], new]
            position = end
        return "".join([*out, self._text[position:]])

    def _at(self, path: tuple[Step, ...]) -> YamlNode:
        node = self._root
        for step in path:
            found = _into(node, step)
            if found is None:
                raise LookupError(f"nothing at {path}, from {step!r} on")
            node = found
        return node


def _into(node: YamlNode, step: Step) -> YamlNode | None:
    if isinstance(node, MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    if isinstance(node, SequenceNode):
        return next((item for place, item in enumerate(node.value) if step == place or _is_called(item, step)), None)
    return None


def _is_called(item: YamlNode, name: Step) -> bool:
    pairs = item.value if isinstance(item, MappingNode) else ()
    return any(key.value == "name" and value.value == name for key, value in pairs)


def _end(node: YamlNode) -> int:
    """Where its last scalar or bracket ends: a block's own end mark lies behind the comments that follow it."""
    if isinstance(node, MappingNode | SequenceNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    end: int = node.end_mark.index
    return end
