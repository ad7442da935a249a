"""What does the Prometheus operator take? The fields of its custom resources that we use or could mistype, strictly.

After the operator's API reference (monitoring.coreos.com/v1), and checked against its custom resource definitions of
version 0.80.
"""

from __future__ import annotations

from typing import Any

import jsonschema


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_NAMES = {"type": "array", "items": _TEXT}
_SWITCH = {"type": "boolean"}
_DURATION = {
    "type": "string",
    "minLength": 1,
    "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
}
_RELABELLING = _object(
    sourceLabels=_NAMES,
    targetLabel=_TEXT,
    regex=_TEXT,
    separator={"type": "string"},
    replacement={"type": "string"},
    action={"enum": ["replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep", "hashmod", "keepequal"]},
)


def _resource(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind={"const": kind},
        metadata=_object(("name",), name=_TEXT, namespace=_TEXT, annotations=_TEXTS, labels=_TEXTS),
        spec=spec,
    )


_SCHEMAS = {
    "ServiceMonitor": _resource(
        "ServiceMonitor",
        _object(
            ("endpoints", "selector"),
            jobLabel=_TEXT,
            targetLabels=_NAMES,
            podTargetLabels=_NAMES,
            namespaceSelector=_object(any=_SWITCH, matchNames=_NAMES),
            selector=_object(matchLabels=_TEXTS, matchExpressions={"type": "array"}),
            endpoints={
                "type": "array",
                "items": _object(
                    port=_TEXT,
                    targetPort={"type": ["string", "integer"]},
                    path=_TEXT,
                    scheme={"enum": ["http", "https"]},
                    interval=_DURATION,
                    scrapeTimeout=_DURATION,
                    honorLabels=_SWITCH,
                    tlsConfig={"type": "object"},
                    authorization={"type": "object"},
                    relabelings={"type": "array", "items": _RELABELLING},
                    metricRelabelings={"type": "array", "items": _RELABELLING},
                ),
            },
        ),
    ),
    "PrometheusRule": _resource(
        "PrometheusRule",
        _object(
            groups={
                "type": "array",
                "items": _object(
                    ("name",),
                    name=_TEXT,
                    interval=_DURATION,
                    rules={
                        "type": "array",
                        "items": _object(
                            ("expr",),
                            alert=_TEXT,
                            record=_TEXT,
                            expr={"type": ["string", "integer"]},
                            keep_firing_for=_DURATION,
                            labels=_TEXTS,
                            annotations=_TEXTS,
                            **{"for": _DURATION},
                        ),
                    },
                ),
            },
        ),
    ),
}


def validate(item: dict[str, Any]) -> None:
    """Raises jsonschema.ValidationError, or KeyError for another kind."""
    jsonschema.validate(item, _SCHEMAS[item["kind"]])
