"""In which words is a strict schema of custom resources written? What is not named is refused."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def strict(required: tuple[str, ...] = (), **properties: Any) -> Json:
    """An object of these properties; a `_` at the end of a name, which Python would take for its own, is left off."""
    return {
        "type": "object",
        "properties": {name.rstrip("_"): value for name, value in properties.items()},
        "required": list(required),
        "additionalProperties": False,
    }


TEXT: Json = {"type": "string", "minLength": 1}
TEXTS: Json = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT: Json = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
SWITCH: Json = {"type": "boolean"}
METADATA = strict(("name",), name=TEXT, namespace=TEXT, annotations=TEXTS, labels=TEXTS)


def resource(version: str, kind: str, spec: Json, metadata: Json = METADATA) -> Json:
    return strict(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": version},
        kind={"const": kind},
        metadata=metadata,
        spec=spec,
    )
