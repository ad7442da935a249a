"""How is a part of an envoy.yaml read as the typed message that Envoy reads it as?

`envoy_data_plane` is imported on first use: its modules take most of a second. An `Any` inside a message is replaced
by an empty one, so that extensions nobody here knows do not stop the reading; those of interest are read on their own.
"""

from __future__ import annotations

import datetime
import difflib
import importlib
import warnings
from typing import TYPE_CHECKING, Any, TypeVar, cast

from extproc.config import codes
from extproc.config.codes import Finding
from extproc.config.problems import Severity, suggest
from extproc.config.tree import Node

if TYPE_CHECKING:
    from betterproto2 import Message

M = TypeVar("M", bound="Message")

_EMPTY = {"@type": "type.googleapis.com/google.protobuf.Empty"}
_TYPED_STRUCTS = ("xds.type.v3.TypedStruct", "udpa.type.v1.TypedStruct")
_ENVOY = ("envoy_data_plane.envoy.", "envoy_data_plane.xds.")


def message_class(package: str, name: str) -> type[Any]:
    """The class of a message, as `message_class("envoy.config.cluster.v3", "Cluster")`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cast("type[Any]", getattr(importlib.import_module(f"envoy_data_plane.{package}"), name))


def unpack(config: Node | None) -> tuple[str, Node | None]:
    """The type and the body of a `typed_config`; a TypedStruct, as Istio writes it, is looked into."""
    if config is None:
        return "", None
    kind = (config.fields.get("@type") or Node("", 0, "")).text or ""
    name = kind.rpartition("/")[2]
    if name in _TYPED_STRUCTS:
        inner = config.get("type_url")
        return ((inner.text or "") if inner else "").rpartition("/")[2], config.get("value")
    return name, config


def read(cls: type[M], node: Node) -> tuple[M, list[Finding]]:
    """The message of a node, without the parts that are wrong, and what is wrong with them. Never raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated fields: Envoy's own matter
        findings = list(_unknown(cls, node))
        try:
            return cls.from_dict(_body(node), ignore_unknown_fields=True), findings
        except Exception:  # betterproto and pydantic raise whatever a strange value leads them into
            good, faults = _sound(cls, node)
            try:
                return cls.from_dict(good, ignore_unknown_fields=True), findings + faults
            except Exception:  # parts that are sound alone, as two members of one oneof
                message = f"is not a {cls.__name__} that Envoy would accept"
                return cls(), [*findings, *faults, Finding(codes.ENVOY_FIELD_VALUE, node, message)]


def _body(node: Node) -> dict[str, Any]:
    """The plain fields of a message, or of an Any's content."""
    return {name: _data(child) for name, child in node.fields.items() if name != "@type"}


def _data(node: Node) -> Any:
    if isinstance(node.value, dict):
        return _EMPTY if "@type" in node.value else _body(node)
    if isinstance(node.value, list):
        return [_data(item) for item in node.value]
    return node.value


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def _sound(cls: type[Any], node: Node) -> tuple[dict[str, Any], list[Finding]]:
    """The fields of a node that can be read one by one, and a finding for each that cannot."""
    good: dict[str, Any] = {}
    faults: list[Finding] = []
    for name, child in node.fields.items():
        if name == "@type":
            continue
        value = _data(child)
        try:
            cls.from_dict({name: value}, ignore_unknown_fields=True)
        except Exception:
            inner = cls._betterproto.cls_by_field.get(_snake(name))
            if _is_message(inner) and isinstance(child.value, dict):
                good[name], deeper = _sound(inner, child)
                faults += deeper
            elif _is_message(inner) and child.items:
                pairs = [_sound(inner, item) for item in child.items]
                good[name] = [pair[0] for pair in pairs]
                faults += [fault for pair in pairs for fault in pair[1]]
            else:
                faults.append(_fault(inner, child))
        else:
            good[name] = value
    return good, faults


def _fault(cls: Any, node: Node) -> Finding:
    shown = f'"{node.value}"' if isinstance(node.value, str) else str(node.plain())[:60]
    names = [str(member.name) for member in cls] if _is_enum(cls) else []
    if names and isinstance(node.value, str):
        return Finding(codes.ENVOY_FIELD_VALUE, node, f"unknown {shown}", cure=suggest(node.value, names))
    if cls is datetime.timedelta:
        return Finding(
            codes.ENVOY_FIELD_VALUE, node, f"{shown} is no duration", cure="write seconds, as in 1s or 0.25s"
        )
    # What Envoy accepts beyond what this reader does is not known exactly, so this is no certain error.
    return Finding(codes.ENVOY_FIELD_VALUE, node, f"{shown} cannot be read", severity=Severity.WARNING)


def _unknown(cls: type[Any], node: Node) -> list[Finding]:
    """Names that a message does not have but nearly has. A name unlike all others may come from a newer Envoy."""
    known = cls._betterproto.cls_by_field
    out: list[Finding] = []
    for name, child in node.fields.items():
        if name == "@type":
            continue
        field = _snake(name)
        inner = known.get(field)
        if inner is None:
            near = difflib.get_close_matches(field, [key for key in known if "." not in key], n=1, cutoff=0.85)
            if near:
                cure = f'did you mean "{near[0]}"?'
                out.append(Finding(codes.ENVOY_FIELD_UNKNOWN, node, f"{cls.__name__} has no such field", name, cure))
        elif _is_message(inner):
            for item in child.items or [child]:
                if "@type" not in item.fields:
                    out += _unknown(inner, item)
    return out


def _is_message(cls: Any) -> bool:
    """Not map entries, and not the messages that JSON writes in a form of their own."""
    return isinstance(cls, type) and cls.__module__.startswith(_ENVOY) and hasattr(cls, "_betterproto")


def _is_enum(cls: Any) -> bool:
    return isinstance(cls, type) and hasattr(cls, "betterproto_renamed_proto_names_to_value")


def text_of(value: object) -> str:
    """A google.protobuf.Value's string, "" for another kind."""
    return str(getattr(value, "string_value", None) or "")
