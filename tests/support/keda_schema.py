"""What does KEDA take? The fields of its custom resources that we use or could mistype, strictly.

After the documentation of ScaledObject and TriggerAuthentication of KEDA 2.20. What KEDA hands to the HPA unchanged,
the `behavior`, is left to Kubernetes' own schema.
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
_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_SWITCH = {"type": "boolean"}


def _resource(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "keda.sh/v1alpha1"},
        kind={"const": kind},
        metadata=_object(("name",), name=_TEXT, namespace=_TEXT, annotations=_TEXTS, labels=_TEXTS),
        spec=spec,
    )


_SCHEMAS = {
    "ScaledObject": _resource(
        "ScaledObject",
        _object(
            ("scaleTargetRef", "triggers"),
            scaleTargetRef=_object(("name",), name=_TEXT, apiVersion=_TEXT, kind=_TEXT, envSourceContainerName=_TEXT),
            pollingInterval=_COUNT,
            initialCooldownPeriod=_COUNT,
            cooldownPeriod=_COUNT,
            idleReplicaCount=_COUNT,
            minReplicaCount=_COUNT,
            maxReplicaCount=_COUNT,
            fallback=_object(
                ("failureThreshold", "replicas"),
                failureThreshold=_COUNT,
                replicas=_COUNT,
                behavior={
                    "enum": [
                        "static",
                        "currentReplicas",
                        "currentReplicasIfHigher",
                        "currentReplicasIfLower",
                        "scalingModifiers",
                    ]
                },
            ),
            advanced=_object(
                restoreToOriginalReplicaCount=_SWITCH,
                horizontalPodAutoscalerConfig=_object(name=_TEXT, behavior={"type": "object"}),
            ),
            triggers={
                "type": "array",
                "minItems": 1,
                "items": _object(
                    ("type", "metadata"),
                    type=_TEXT,
                    name=_TEXT,
                    metadata=_TEXTS,  # texts only: numbers and switches stand in quotes
                    metricType={"enum": ["AverageValue", "Value", "Utilization"]},
                    useCachedMetrics=_SWITCH,
                    authenticationRef=_object(
                        ("name",), name=_TEXT, kind={"enum": ["TriggerAuthentication", "ClusterTriggerAuthentication"]}
                    ),
                ),
            },
        ),
    ),
    "TriggerAuthentication": _resource(
        "TriggerAuthentication",
        _object(
            ("secretTargetRef",),
            secretTargetRef={
                "type": "array",
                "items": _object(("parameter", "name", "key"), parameter=_TEXT, name=_TEXT, key=_TEXT),
            },
        ),
    ),
}


def validate(item: dict[str, Any]) -> None:
    """Raises jsonschema.ValidationError, or KeyError for another kind."""
    jsonschema.validate(item, _SCHEMAS[item["kind"]])
    spec = item["spec"]
    if "maxReplicaCount" in spec and spec["maxReplicaCount"] < spec.get("minReplicaCount", 0):
        raise jsonschema.ValidationError("minReplicaCount is more than maxReplicaCount")
