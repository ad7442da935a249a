"""Do all files that run our containers, and Envoy's, say that these are nobody, write nowhere and gain no rights?

vLLM's own image is its users' to confine; where it is replaced by ours the same holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "envoy" / "kubernetes"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
THEIRS = "vllm/vllm-openai"


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """The pod templates of all manifests, by file and name."""
    for file in sorted(KUBERNETES.rglob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            template = ((document or {}).get("spec") or {}).get("template") if isinstance(document, dict) else None
            if isinstance(template, dict) and "spec" in template:
                yield f"{file.parent.name}/{file.name}: {document['metadata']['name']}", template["spec"]


PODS = dict(pods())
OURS = {name: pod for name, pod in PODS.items() if not pod["containers"][0]["image"].startswith(THEIRS)}


def test_all_are_looked_at() -> None:
    assert {name.rpartition(" ")[2] for name in OURS} >= {"extproc", "gateway"}
    assert {name.rpartition(" ")[2] for name in PODS.keys() - OURS.keys()} <= {"vllm"}
    assert {"envoy", "extproc"} <= COMPOSE.keys()


@pytest.mark.parametrize("name", OURS)
def test_a_pod_is_confined(name: str) -> None:
    pod = OURS[name]
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert not [volume for volume in pod.get("volumes", ()) if "hostPath" in volume]
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert not own.get("privileged")
        assert "memory" in container["resources"]["limits"], "a flood ends in this container, not in its node"


def test_the_simulated_server_in_vllms_place_is_confined() -> None:
    component = yaml.safe_load((KUBERNETES / "components" / "simulated" / "kustomization.yaml").read_text())
    (patch,) = component["patches"]
    added = {each["path"]: each.get("value") for each in yaml.safe_load(patch["patch"])}
    pod = added["/spec/template/spec/securityContext"]
    container = added["/spec/template/spec/containers/0/securityContext"]
    assert (pod["runAsNonRoot"], pod["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    assert container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_only_who_asks_the_api_has_its_token() -> None:
    """The service's account is for discovery; nobody else's pod gets a token of Kubernetes."""
    for name, pod in PODS.items():
        account = pod.get("serviceAccountName")
        if account is None:
            assert pod.get("automountServiceAccountToken") is False, name
        else:
            assert name.endswith(": extproc")


@pytest.mark.parametrize("name", COMPOSE)
def test_a_service_of_compose_is_confined(name: str) -> None:
    service = COMPOSE[name]
    user = str(service["user"]).partition(":")[0]
    assert user not in ("0", "root")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.get("privileged")
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:"), "published to this machine alone"


def test_the_image_is_of_nobody() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    (user,) = [line for line in lines if line.startswith("USER ")]
    assert user == "USER 10001"
    assert lines.index(user) > max(number for number, line in enumerate(lines) if line.startswith(("RUN ", "COPY ")))
    assert not [line for line in lines if "ADD http" in line or "curl" in line]
