"""Do the components of envoy/kubernetes say what Kubernetes and KEDA take, and fit the manifests and the service?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import ValidationError

from extproc.server import keda
from tests.support import keda_schema
from tests.support.metrics_doc import series_names
from tests.test_kubernetes_manifests import (
    FOLDER,
    KUSTOMIZATION,
    OBJECTS,
    ROOT,
    VERSIONS,
    container_of,
    pod_of,
    settings,
)

COMPONENTS = ("hpa", "keda")  # that scale; tests/test_kubernetes_overlays.py has all
ADDED = FOLDER.parent / "components"
MANUAL = ROOT / "docs" / "autoscale-kubernetes.md"
GAUGE = "extproc_autoscale_desired_replicas"


def read(component: str, name: str) -> Any:
    return yaml.safe_load((ADDED / component / name).read_text())


def kustomization(component: str) -> dict[str, Any]:
    return dict(read(component, "kustomization.yaml"))


SCALED_OBJECT, HPA = read("keda", "scaledobject.yaml"), read("hpa", "hpa.yaml")
BEHAVIOUR = {
    "keda": SCALED_OBJECT["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
    "hpa": HPA["spec"]["behavior"],
}


def examples() -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", MANUAL.read_text(), re.DOTALL)]


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_has_all_its_files_and_takes_the_number_out_of_the_deployment(component: str) -> None:
    found = kustomization(component)
    assert (found["kind"], found["apiVersion"]) == ("Component", "kustomize.config.k8s.io/v1alpha1")
    there = {path.name for path in (ADDED / component).iterdir()}
    assert there - {"adapter-rules.yaml"} == {*found["resources"], "kustomization.yaml"}
    (patch,) = found["patches"]
    target = OBJECTS[patch["target"]["kind"], patch["target"]["name"]]
    assert yaml.safe_load(patch["patch"]) == [{"op": "remove", "path": "/spec/replicas"}]
    assert target["spec"]["replicas"] == settings().pools["vllm"].autoscale.min_replicas  # type: ignore[union-attr]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["hpa/hpa.yaml", "keda/networkpolicy.yaml"])
def test_kubernetes_accepts_it(name: str, version: str) -> None:
    item = yaml.safe_load((ADDED / name).read_text())
    kubernetes_validate.validate(item, version, strict=True)
    assert (item["kind"], item["metadata"]["name"]) not in OBJECTS


def with_tolerance(path: Path) -> Any:
    text, count = re.subn(r"# (tolerance: \"0\")", r"\1", path.read_text())
    assert count == 2
    return yaml.safe_load(text)


def test_the_tolerance_may_be_taken_in_where_kubernetes_has_it() -> None:
    item = with_tolerance(ADDED / "hpa" / "hpa.yaml")
    kubernetes_validate.validate(item, "1.35", strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(item, VERSIONS[0], strict=True)
    scaled = with_tolerance(ADDED / "keda" / "scaledobject.yaml")
    keda_schema.validate(scaled)
    kubernetes_validate.validate(made_by_keda(scaled), "1.35", strict=True)


def made_by_keda(scaled: dict[str, Any]) -> dict[str, Any]:
    """The HPA that KEDA makes of a ScaledObject."""
    spec = scaled["spec"]
    metric = {
        "metric": {"name": f"s0-{keda.METRIC}", "selector": {"matchLabels": {"scaledobject.keda.sh/name": "vllm"}}},
        "target": {"type": spec["triggers"][0]["metricType"], "averageValue": f"{1000 * keda.TARGET}m"},
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": f"keda-hpa-{scaled['metadata']['name']}"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", **spec["scaleTargetRef"]},
            "minReplicas": spec["minReplicaCount"],
            "maxReplicas": spec["maxReplicaCount"],
            "metrics": [{"type": "External", "external": metric}],
            "behavior": spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
        },
    }


def test_keda_accepts_the_scaled_object_and_kubernetes_what_it_makes_of_it() -> None:
    keda_schema.validate(SCALED_OBJECT)
    for version in VERSIONS:
        kubernetes_validate.validate(made_by_keda(SCALED_OBJECT), version, strict=True)


def test_keda_accepts_the_authentication_of_the_manual() -> None:
    (authentication,) = (each for each in examples() if each.get("kind") == "TriggerAuthentication")
    keda_schema.validate(authentication)
    assert authentication["metadata"]["namespace"] == KUSTOMIZATION["namespace"]
    parameters = {each["parameter"] for each in authentication["spec"]["secretTargetRef"]}
    assert parameters == {"caCert", "tlsClientCert", "tlsClientKey"}


@pytest.mark.parametrize(
    "change",
    [
        {"minReplicas": 2},
        {"fallback": {"failureThreshold": 3}},
        {"fallback": {"failureThreshold": 3, "replicas": 2, "behaviour": "static"}},
        {"triggers": [{"type": "external", "metadata": {"unsafeSsl": False}}]},
        {"minReplicaCount": 9},
    ],
    ids=str,
)
def test_what_keda_does_not_take_is_not_accepted(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        keda_schema.validate({**SCALED_OBJECT, "spec": {**SCALED_OBJECT["spec"], **change}})


def test_the_scaler_is_the_grpc_port_of_the_service() -> None:
    (trigger,) = SCALED_OBJECT["spec"]["triggers"]
    assert trigger["type"] == "external-push"
    host, _, port = trigger["metadata"]["scalerAddress"].partition(":")
    assert host == f"extproc.{KUSTOMIZATION['namespace']}.svc"
    assert {"grpc": int(port)}.items() <= {
        each["name"]: each["port"] for each in OBJECTS["Service", "extproc"]["spec"]["ports"]
    }.items()
    assert keda.POOL_KEY in trigger["metadata"]
    assert trigger["metadata"][keda.POOL_KEY] in settings().pools


def test_the_bounds_are_the_same_wherever_they_stand() -> None:
    autoscale = settings().pools["vllm"].autoscale
    assert autoscale is not None
    bounds = (autoscale.min_replicas, autoscale.max_replicas)
    assert (HPA["spec"]["minReplicas"], HPA["spec"]["maxReplicas"]) == bounds
    spec = SCALED_OBJECT["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == bounds
    assert spec["fallback"]["replicas"] == autoscale.min_replicas
    assert autoscale.peers == ("extproc:9003",)


def test_both_scale_the_servers() -> None:
    reference = HPA["spec"]["scaleTargetRef"]
    assert OBJECTS[reference["kind"], reference["name"]]["apiVersion"] == reference["apiVersion"]
    assert SCALED_OBJECT["spec"]["scaleTargetRef"] == {"name": reference["name"]}


def test_the_hpa_asks_for_the_gauge_and_takes_it_for_the_number() -> None:
    (metric,) = HPA["spec"]["metrics"]
    assert metric["external"] == {
        "metric": {"name": GAUGE, "selector": {"matchLabels": {"pool": "vllm"}}},
        "target": {"type": "AverageValue", "averageValue": "1"},
    }
    assert GAUGE in series_names()
    (rule,) = read("hpa", "adapter-rules.yaml")["externalRules"]
    assert rule["seriesQuery"].startswith(GAUGE + "{")


@pytest.mark.parametrize("component", COMPONENTS)
def test_servers_come_at_once_and_go_one_at_a_time(component: str) -> None:
    up, down = BEHAVIOUR[component]["scaleUp"], BEHAVIOUR[component]["scaleDown"]
    assert up["stabilizationWindowSeconds"] == 0
    assert up["policies"][0]["value"] >= HPA["spec"]["maxReplicas"]
    assert down["stabilizationWindowSeconds"] == {"keda": 120, "hpa": 0}[component]
    (policy,) = down["policies"]
    assert (policy["type"], policy["value"]) == ("Pods", 1)
    hook = container_of("vllm")["lifecycle"]["preStop"]["exec"]["command"][2]
    (hook_s,) = map(int, re.findall(r"start \+ (\d+)", hook))
    assert hook_s < policy["periodSeconds"] <= pod_of("vllm")["spec"]["terminationGracePeriodSeconds"]


def test_the_policy_lets_in_keda_and_nobody_else() -> None:
    spec = read("keda", "networkpolicy.yaml")["spec"]
    assert spec["podSelector"]["matchLabels"] == pod_of("extproc")["metadata"]["labels"]
    (rule,) = spec["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"] == {"app": "keda-operator"}
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "keda"}
    assert rule["ports"] == [{"port": 9002}]
