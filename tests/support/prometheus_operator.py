"""What does the Prometheus operator take? The fields of its custom resources that we use or could mistype, strictly.

After the operator's API reference (monitoring.coreos.com/v1), and checked against its custom resource definitions of
version 0.80.
"""

from __future__ import annotations

from typing import Any

import jsonschema

from tests.support.strict_schema import SWITCH, TEXT, TEXTS, resource, strict

_NAMES = {"type": "array", "items": TEXT}
_DURATION = {
    "type": "string",
    "minLength": 1,
    "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
}
_RELABELLING = strict(
    sourceLabels=_NAMES,
    targetLabel=TEXT,
    regex=TEXT,
    separator={"type": "string"},
    replacement={"type": "string"},
    action={"enum": ["replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep", "hashmod", "keepequal"]},
)


_VERSION = "monitoring.coreos.com/v1"
_SCHEMAS = {
    "ServiceMonitor": resource(
        _VERSION,
        "ServiceMonitor",
        strict(
            ("endpoints", "selector"),
            jobLabel=TEXT,
            targetLabels=_NAMES,
            podTargetLabels=_NAMES,
            namespaceSelector=strict(any=SWITCH, matchNames=_NAMES),
            selector=strict(matchLabels=TEXTS, matchExpressions={"type": "array"}),
            endpoints={
                "type": "array",
                "items": strict(
                    port=TEXT,
                    targetPort={"type": ["string", "integer"]},
                    path=TEXT,
                    scheme={"enum": ["http", "https"]},
                    interval=_DURATION,
                    scrapeTimeout=_DURATION,
                    honorLabels=SWITCH,
                    tlsConfig={"type": "object"},
                    authorization={"type": "object"},
                    relabelings={"type": "array", "items": _RELABELLING},
                    metricRelabelings={"type": "array", "items": _RELABELLING},
                ),
            },
        ),
    ),
    "PrometheusRule": resource(
        _VERSION,
        "PrometheusRule",
        strict(
            groups={
                "type": "array",
                "items": strict(
                    ("name",),
                    name=TEXT,
                    interval=_DURATION,
                    rules={
                        "type": "array",
                        "items": strict(
                            ("expr",),
                            alert=TEXT,
                            record=TEXT,
                            expr={"type": ["string", "integer"]},
                            keep_firing_for=_DURATION,
                            labels=TEXTS,
                            annotations=TEXTS,
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
