"""How do the settings and the rules read in the manual? The tables of docs/configuration.md, envoy.md and drain.md.

`python -m extproc.config.reference docs` writes them into the pages of that folder, between their marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from extproc.config.check import all_codes
from extproc.config.schema import section_of
from extproc.config.settings import Settings

_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}


_POOL = "pools.<name>."
_OF_THEIR_OWN = ("discovery", "autoscale")  # sections of a pool that are as large as others


def settings_table() -> str:
    """Every setting by its dotted path: a Markdown table for each section, under its name."""
    sections: dict[str, list[str]] = {}
    for path, kind, default, text in _rows(Settings, ""):
        sections.setdefault(_section(path), []).append(f"| `{path}` | {kind} | {default} | {text} |")
    head = "| setting | value | default | what it is |\n|---|---|---|---|\n"
    return "\n\n".join(f"### {section}\n\n{head}" + "\n".join(rows) for section, rows in sections.items())


def _section(path: str) -> str:
    """The heading under which a setting stands."""
    if path.startswith(_POOL):
        name = path.removeprefix(_POOL).partition(".")[0]
        return f"pools: {name}" if name in _OF_THEIR_OWN else "pools"
    return path.partition(".")[0] if "." in path or path in _SECTIONS else "the process"


_SECTIONS = frozenset(name for name, field in Settings.model_fields.items() if section_of(field.annotation) is not None)


def rules_table(*, kubernetes: bool = False) -> str:
    """The codes of `extproc check`, as a Markdown table: those of its option --kubernetes, or the others."""
    rows = ["| code | | why | cure |", "|---|---|---|---|"]
    rows += [
        f"| `{code.name}` | {code.severity} | {_cell(code.why)} | {_cell(code.cure) or 'said with the problem'} |"
        for code in all_codes()
        if code.name.startswith("kubernetes-") is kubernetes
    ]
    return "\n".join(rows)


def _rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        inner = section_of(field.annotation)
        container = get_origin(field.annotation)
        if inner is None:
            yield path, _kind(field), _default(field), _cell(field.description or "")
        elif container is dict:
            yield path, "sections by name", "none", _cell(field.description or "")
            yield from _rows(inner, f"{path}.<name>.")
        elif container is tuple:
            yield path, "list", "empty", _cell(field.description or "")
            yield from _rows(inner, f"{path}[].")
        elif NoneType in get_args(field.annotation):
            again = prefix and inner in {section_of(f.annotation) for f in Settings.model_fields.values()}
            yield path, "section", "unset", _cell(field.description or "")
            if not again:
                yield from _rows(inner, f"{path}.")
        else:
            yield from _rows(inner, f"{path}.")


def _kind(field: FieldInfo) -> str:
    annotation = field.annotation
    members = [part for part in get_args(annotation) if part is not NoneType] if annotation is not None else []
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{member}`" for member in members)
    base: Any = members[0] if members else annotation
    constraints = list(field.metadata)
    if get_origin(base) is Annotated:
        base, *more = get_args(base)
        constraints += [inner for each in more for inner in getattr(each, "metadata", ())]
    if get_args(base):  # a list of this or that
        return " or ".join(_WORDS.get(part, str(part)) for part in get_args(base))
    return _WORDS.get(base, str(base)) + "".join(_limits(constraints))


def _limits(constraints: Iterable[object]) -> Iterator[str]:
    words = {"gt": "over", "ge": "from", "lt": "under", "le": "to"}
    for constraint in constraints:
        for name, word in words.items():
            value = getattr(constraint, name, None)
            if value is not None:
                yield f" {word} {value:g}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "unset"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "configuration.md": {"settings": settings_table},
    "envoy.md": {"rules": rules_table},
    "drain.md": {"kubernetes-rules": lambda: rules_table(kubernetes=True)},
}
"""What stands between which marks of which page."""


def marked(name: str) -> re.Pattern[str]:
    """A table in a page, between its marks: the second group."""
    return re.compile(rf"(<!-- {name}: .*?-->\n)(.*?)(\n<!-- end of {name} -->)", re.DOTALL)


def write(docs: Path) -> None:
    """Bring the tables of all pages up to date."""
    for page, tables in TABLES.items():
        text = (docs / page).read_text(encoding="utf-8")
        for name, table in tables.items():
            text = marked(name).sub(lambda match, table=table: match[1] + table() + match[3], text)  # type: ignore[misc]
        (docs / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    import sys

    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
