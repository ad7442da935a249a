"""What do the settings in a tree come to, and how is a mistake in them said in plain words?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from extproc.config import codes
from extproc.config.codes import Finding
from extproc.config.problems import suggest
from extproc.config.settings import Settings
from extproc.config.tree import Node

Location = tuple[int | str, ...]


def validate(tree: Node) -> tuple[Settings | None, list[Finding]]:
    """The settings of a tree that has the shape of `Settings`; None when something in it is wrong."""
    try:
        return Settings.model_validate(_without_empty(tree)), []
    except ValidationError as error:
        return None, findings_of(error, tree)


def findings_of(error: ValidationError, tree: Node) -> list[Finding]:
    """The mistakes that pydantic found in what a tree holds."""
    return [_finding(tree, details) for details in error.errors(include_url=False)]


def _without_empty(node: Node, *, keep: bool = False) -> Any:
    """Plain values; a key with nothing after it counts as not written, and a pool with nothing as an empty one."""
    if isinstance(node.value, dict):
        out = {}
        for name, child in node.value.items():
            if child.value is None and not keep:
                continue
            out[name] = {} if child.value is None else _without_empty(child, keep=node.path == "" and name == "pools")
        return out
    if isinstance(node.value, list):
        return [_without_empty(item) for item in node.value]
    return node.value


def _finding(tree: Node, details: ErrorDetails) -> Finding:
    location, kind = details["loc"], details["type"]
    node, missing = _find(tree, location)
    if kind == "extra_forbidden":
        model = _model(location[:-1])
        cure = _where_known(str(location[-1]), model)
        return Finding(codes.SETTING_UNKNOWN, node, "unknown setting", missing, cure)
    if kind == "missing":
        return Finding(codes.SETTING_MISSING, node, "is not set", missing)
    message, cure = _words(details)
    code = codes.ENDPOINT_ADDRESS if location[-1:] == ("address",) else codes.SETTING_VALUE
    return Finding(code, node, message, missing, cure)


def _words(details: ErrorDetails) -> tuple[str, str]:
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    shown = _shown(given)
    if kind == "literal_error":
        return f"unknown {shown}", suggest(str(given), re.findall(r"'([^']*)'", str(context.get("expected", ""))))
    if kind == "unknown_choice":
        return f"unknown {shown}", suggest(str(given), context.get("choices", ()))
    if kind == "value_error":
        message, _, cure = str(context.get("error", details["msg"])).partition("; ")
        return message, cure
    if kind.startswith(("int", "float", "finite_number")):
        return f"{shown} is not a {'whole ' if kind.startswith('int') else ''}number", "write digits"
    if kind.startswith("bool"):
        return f"{shown} is neither true nor false", "write true or false"
    if kind == "string_type":
        return f"{shown} is not text", "put it in quotes" if _is_scalar(given) else "write one value"
    if kind == "string_pattern_mismatch":
        return f"{shown} does not match {context.get('pattern')}", 'start it with "/"'
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"{shown} is not a section", "write its settings as `key: value` under it"
    if kind in ("tuple_type", "list_type"):
        return f"{shown} is not a list", 'start each item with "- "'
    limit = next((f"{_LIMITS[key]} {context[key]:g}" for key in _LIMITS if key in context), "")
    if limit:
        return f"{shown} is out of range", f"it must be {limit}"
    return f"{shown}: {details['msg'][:1].lower()}{details['msg'][1:]}", ""


_LIMITS = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}


def _is_scalar(value: object) -> bool:
    return not isinstance(value, Mapping | Sequence) or isinstance(value, str)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f'"{value[:60]}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a section"
    return "a list" if isinstance(value, Sequence) else str(value)[:60]


def _find(tree: Node, location: Location) -> tuple[Node, str]:
    """The deepest node of a location that is in the file, and the rest of the location as a dotted path."""
    node = tree
    for depth, part in enumerate(location):
        child: Node | None = None
        if isinstance(part, int):
            child = node.items[part] if part < len(node.items) else None
        elif part != "[key]":
            child = node.fields.get(part)
        if child is None:
            return node, ".".join(str(name) for name in location[depth:] if name != "[key]")
        node = child
    return node, ""


def _model(location: Location) -> type[BaseModel] | None:
    """The section that a location leads to."""
    annotation: Any = Settings
    for part in location:
        if get_origin(annotation) in (dict, tuple):  # the part is a name or an index in it
            annotation = section_of(annotation)
            continue
        field = annotation.model_fields.get(str(part)) if annotation is not None else None
        if field is None:
            return None
        annotation = field.annotation
        if get_origin(annotation) not in (dict, tuple):
            annotation = section_of(annotation)
    return annotation if isinstance(annotation, type) else None


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation such as `dict[str, PoolSettings]` or `TlsSettings | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_of(part))), None)


def _where_known(name: str, model: type[BaseModel] | None) -> str:
    """A cure for an unknown key: a near name of its section, else the section it belongs in."""
    here = list(model.model_fields) if model is not None else []
    cure = suggest(name, here)
    if cure.startswith("did you mean"):
        return cure
    homes = [
        section
        for section, field in Settings.model_fields.items()
        if (inner := section_of(field.annotation)) is not None and inner is not model and name in inner.model_fields
    ]
    if homes:
        place = f"{homes[0]}.<name>" if homes[0] == "pools" else homes[0]
        return f'it belongs under "{place}"'
    return "it is a top-level setting" if name in Settings.model_fields else cure
