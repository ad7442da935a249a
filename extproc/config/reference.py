"""How do the settings and the rules read in the manual? The tables of docs/configuration.md and docs/envoy.md."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from extproc.config.check import all_codes
from extproc.config.schema import section_of
from extproc.config.settings import Settings

_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def settings_table() -> str:
    """Every setting by its dotted path, as a Markdown table."""
    rows = ["| setting | value | default | what it is |", "|---|---|---|---|"]
    rows += [f"| `{path}` | {kind} | {default} | {text} |" for path, kind, default, text in _rows(Settings, "")]
    return "\n".join(rows)


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
    if get_args(base):  # a list of this or that
        return " or ".join(_WORDS.get(part, str(part)) for part in get_args(base))
    return _WORDS.get(base, str(base)) + "".join(_limits(field))


def _limits(field: FieldInfo) -> Iterator[str]:
    words = {"gt": "over", "ge": "from", "lt": "under", "le": "to"}
    for constraint in field.metadata:
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


if __name__ == "__main__":
    import sys

    sys.stdout.write(settings_table() + "\n\n" + rules_table() + "\n\n" + rules_table(kubernetes=True) + "\n")
