"""What does KEDA take? The fields of its custom resources that we use or could mistype, strictly.

After the documentation of ScaledObject and TriggerAuthentication of KEDA 2.20. What KEDA hands to the HPA unchanged,
the `behavior`, is left to Kubernetes' own schema.
"""

from __future__ import annotations

from typing import Any

import jsonschema

from tests.support.strict_schema import COUNT, SWITCH, TEXT, TEXTS, resource, strict

_VERSION = "keda.sh/v1alpha1"
_SCHEMAS = {
    "ScaledObject": resource(
        _VERSION,
        "ScaledObject",
        strict(
            ("scaleTargetRef", "triggers"),
            scaleTargetRef=strict(("name",), name=TEXT, apiVersion=TEXT, kind=TEXT, envSourceContainerName=TEXT),
            pollingInterval=COUNT,
            initialCooldownPeriod=COUNT,
            cooldownPeriod=COUNT,
            idleReplicaCount=COUNT,
            minReplicaCount=COUNT,
            maxReplicaCount=COUNT,
            fallback=strict(
                ("failureThreshold", "replicas"),
                failureThreshold=COUNT,
                replicas=COUNT,
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
            advanced=strict(
                restoreToOriginalReplicaCount=SWITCH,
                horizontalPodAutoscalerConfig=strict(name=TEXT, behavior={"type": "object"}),
            ),
            triggers={
                "type": "array",
                "minItems": 1,
                "items": strict(
                    ("type", "metadata"),
                    type=TEXT,
                    name=TEXT,
                    metadata=TEXTS,  # texts only: numbers and switches stand in quotes
                    metricType={"enum": ["AverageValue", "Value", "Utilization"]},
                    useCachedMetrics=SWITCH,
                    authenticationRef=strict(
                        ("name",), name=TEXT, kind={"enum": ["TriggerAuthentication", "ClusterTriggerAuthentication"]}
                    ),
                ),
            },
        ),
    ),
    "TriggerAuthentication": resource(
        _VERSION,
        "TriggerAuthentication",
        strict(
            ("secretTargetRef",),
            secretTargetRef={
                "type": "array",
                "items": strict(("parameter", "name", "key"), parameter=TEXT, name=TEXT, key=TEXT),
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
