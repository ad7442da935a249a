"""Do the kustomizations of envoy/kubernetes make what they say, of objects that Kubernetes takes and that fit together?

`kubectl kustomize` makes them; the schemas are those that Kubernetes publishes, and for KEDA and the Prometheus
operator what their documentation says. No cluster is needed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from jsonschema import ValidationError

from extproc.cli.main import app
from extproc.config.manifests.check import check_manifests
from tests.support import keda_schema, kustomize, prometheus_operator
from tests.support.kustomize import Objects
from tests.test_kubernetes_manifests import FOLDER, OBJECTS, ROOT, VERSIONS, container_of, settings

KUBERNETES = FOLDER.parent
OVERLAYS = ("hpa", "keda", "monitoring", "simulated")
ADDS = {
    "hpa": {("HorizontalPodAutoscaler", "vllm")},
    "keda": {("ScaledObject", "vllm"), ("NetworkPolicy", "extproc-keda")},
    "monitoring": {("ServiceMonitor", "extproc")},
    "simulated": set(),
}
CUSTOM = {"ScaledObject": keda_schema.validate, "ServiceMonitor": prometheus_operator.validate}
SCALED = ("hpa", "keda")
MANUAL = (ROOT / "docs" / "kubernetes.md").read_text()


def made(overlay: str) -> Objects:
    return kustomize.build(KUBERNETES / "overlays" / overlay)


def of_kind(objects: Objects, kind: str) -> dict[str, dict[str, Any]]:
    return {name: item for (found, name), item in objects.items() if found == kind}


def accepted(objects: Objects, version: str) -> None:
    for (kind, _), item in objects.items():
        if kind in CUSTOM:
            CUSTOM[kind](item)
        else:
            kubernetes_validate.validate(item, version, strict=True)


def selected(objects: Objects, labels: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The pods' templates that these labels select."""
    for deployment in of_kind(objects, "Deployment").values():
        template = deployment["spec"]["template"]
        if labels.items() <= template["metadata"]["labels"].items():
            yield template


def ports_of(template: dict[str, Any]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for each in template["spec"]["containers"] for port in each["ports"]}


def fit(objects: Objects) -> None:
    """Every name, label and port that one object says of another is there."""
    for deployment in of_kind(objects, "Deployment").values():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
        for volume in deployment["spec"]["template"]["spec"].get("volumes", ()):
            assert "configMap" not in volume or ("ConfigMap", volume["configMap"]["name"]) in objects
    for service in of_kind(objects, "Service").values():
        (template,) = selected(objects, service["spec"]["selector"])
        ports = ports_of(template)
        for port in service["spec"]["ports"]:
            assert port["appProtocol"] in ("http", "kubernetes.io/h2c")
            assert port.get("targetPort", port["port"]) in {*ports, *ports.values()}
    for budget in of_kind(objects, "PodDisruptionBudget").values():
        assert len(list(selected(objects, budget["spec"]["selector"]["matchLabels"]))) == 1
    for policy in of_kind(objects, "NetworkPolicy").values():
        (template,) = selected(objects, policy["spec"]["podSelector"]["matchLabels"])
        for rule in policy["spec"]["ingress"]:
            assert {port["port"] for port in rule["ports"]} <= set(ports_of(template).values())
            for peer in rule.get("from", ()):
                if "namespaceSelector" not in peer:
                    assert len(list(selected(objects, peer["podSelector"]["matchLabels"]))) == 1
    for monitor in of_kind(objects, "ServiceMonitor").values():
        services = [
            service
            for service in of_kind(objects, "Service").values()
            if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"].get("labels", {}).items()
        ]
        (service,) = services
        names = {port["name"] for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= names


def test_these_are_all_there_are() -> None:
    assert sorted(path.name for path in (KUBERNETES / "overlays").iterdir()) == sorted(OVERLAYS)
    assert sorted(path.name for path in (KUBERNETES / "components").iterdir()) == sorted(OVERLAYS)
    assert set(re.findall(r"overlays/([a-z]+)", MANUAL)) == set(OVERLAYS)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_the_base_and_what_it_adds(overlay: str) -> None:
    base = kustomize.build(FOLDER)
    assert base.keys() - {key for key in base if key[0] == "ConfigMap"} == OBJECTS.keys()
    objects = made(overlay)
    assert objects.keys() - base.keys() == ADDS[overlay]
    assert base.keys() <= objects.keys()
    changed = {("Deployment", "vllm")} if overlay != "monitoring" else set()
    assert {key for key in base if base[key] != objects[key]} == changed
    assert {item["metadata"].get("namespace") for item in objects.values() if item["kind"] != "Namespace"} == {"llm"}
    (subject,) = objects["RoleBinding", "extproc"]["subjects"]
    assert subject["namespace"] == "llm"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", ["base", *OVERLAYS])
def test_every_object_is_accepted(overlay: str, version: str) -> None:
    """Of an overlay those that are not as in the base."""
    base = kustomize.build(FOLDER)
    others = {} if overlay == "base" else base
    objects = base if overlay == "base" else made(overlay)
    new = {key: item for key, item in objects.items() if others.get(key) != item}
    assert new
    accepted(new, version)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_objects_fit_together(overlay: str) -> None:
    fit(made(overlay))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_both_read_the_configuration_that_is_made(overlay: str) -> None:
    """Its name has a hash of its content in it, so that a change restarts them."""
    ((name, config),) = of_kind(made(overlay), "ConfigMap").items()
    assert re.fullmatch(r"envoy-[a-z0-9]{10}", name)
    assert config["data"] == {"envoy.yaml": (FOLDER / "envoy.yaml").read_text()}
    for reader in ("extproc", "gateway"):
        volumes = of_kind(made(overlay), "Deployment")[reader]["spec"]["template"]["spec"]["volumes"]
        assert [volume["configMap"]["name"] for volume in volumes if "configMap" in volume] == [name]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_who_scales_is_not_undone_by_the_next_apply(overlay: str) -> None:
    spec = of_kind(made(overlay), "Deployment")["vllm"]["spec"]
    assert ("replicas" in spec) == (overlay not in SCALED)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_servers_let_their_last_requests_end(overlay: str) -> None:
    text = yaml.safe_dump_all(made(overlay).values())
    if overlay == "simulated":  # what is checked is real servers: all else must be as theirs, below
        text = re.sub(r"image: vllm-extproc:.*\n(?= *lifecycle)", "image: vllm/vllm-openai:v0\n", text)
    assert check_manifests([("made", text)], settings().drain.bounds) == ()


class TestMonitoring:
    def monitor(self) -> dict[str, Any]:
        return made("monitoring")["ServiceMonitor", "extproc"]

    def test_the_job_has_the_name_that_alerts_go_by(self) -> None:
        label = self.monitor()["spec"]["jobLabel"]
        assert OBJECTS["Service", "extproc"]["metadata"]["labels"][label] == "extproc"
        assert 'job="extproc"' in (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text()

    def test_the_network_lets_prometheus_in(self) -> None:
        (endpoint,) = self.monitor()["spec"]["endpoints"]
        ports = {port["name"]: port["port"] for port in OBJECTS["Service", "extproc"]["spec"]["ports"]}
        rules = OBJECTS["NetworkPolicy", "extproc"]["spec"]["ingress"]
        (rule,) = (rule for rule in rules if rule["ports"] == [{"port": ports[endpoint["port"]]}])
        assert any("namespaceSelector" in peer for peer in rule["from"])

    @pytest.mark.parametrize(
        ("field", "value"), [("endpoint", []), ("selector", None), ("endpoints", [{"prt": "admin"}])], ids=str
    )
    def test_what_the_operator_does_not_take_is_not_accepted(self, field: str, value: Any) -> None:
        monitor = self.monitor()
        with pytest.raises(ValidationError):
            prometheus_operator.validate({**monitor, "spec": {**monitor["spec"], field: value}})

    def test_the_alerts_are_what_the_operator_takes_when_added_as_the_manual_says(self) -> None:
        """Its shell command runs as it stands, but that what kubectl would apply is looked at."""
        (command,) = re.findall(r"```sh\n(\{ cat .*?)```", MANUAL, re.DOTALL)
        assert command.count("kubectl apply -f -") == 1
        text = command.replace("kubectl apply -f -", "cat")
        done = subprocess.run(["sh", "-ec", text], cwd=ROOT, capture_output=True, text=True, check=True)
        rules = yaml.safe_load(done.stdout)
        prometheus_operator.validate(rules)
        assert rules["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())
        assert rules["metadata"]["labels"] == self.monitor()["metadata"]["labels"]
        assert rules["metadata"]["namespace"] == self.monitor()["metadata"]["namespace"]


class TestSimulatedServers:
    def spec(self) -> dict[str, Any]:
        return dict(made("simulated")["Deployment", "vllm"]["spec"]["template"]["spec"])

    def test_they_are_our_image_with_a_command_that_there_is(self) -> None:
        (container,) = self.spec()["containers"]
        assert container["image"] == container_of("extproc")["image"]
        name, *args = container["args"]
        command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
        options = command.make_context(name, list(args)).params
        assert options["port"] == container_of("vllm")["ports"][0]["containerPort"]
        assert (options["host"], options["count"]) == ("0.0.0.0", 1)
        assert options["shutdown_timeout"] == 10

    def test_they_need_no_gpu_and_no_rights(self) -> None:
        (container,) = self.spec()["containers"]
        assert container["resources"]["limits"].keys() == {"memory"}
        assert self.spec()["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert "volumeMounts" not in container
        assert "volumes" not in self.spec()

    def test_all_else_is_as_with_real_servers(self) -> None:
        (container,), real = self.spec()["containers"], container_of("vllm")
        for same in ("lifecycle", "startupProbe", "readinessProbe", "livenessProbe", "ports", "env"):
            assert container[same] == real[same]


class TestAFolderOfYourOwn:
    """The manual's kustomization, beside a checkout, with an envoy.yaml of its own."""

    @pytest.fixture
    def objects(self, tmp_path: Path) -> Objects:
        shutil.copytree(KUBERNETES, tmp_path / "extproc" / "envoy" / "kubernetes")
        folder = tmp_path / "llm"
        folder.mkdir()
        (text,) = (
            text for text in re.findall(r"```yaml\n(.*?)```", MANUAL, re.DOTALL) if "kind: Kustomization" in text
        )
        (folder / "kustomization.yaml").write_text(text)
        (folder / "envoy.yaml").write_text("node: {id: mine, cluster: mine}\n")
        return kustomize.build(folder)

    def test_it_is_accepted_and_fits_together(self, objects: Objects) -> None:
        for version in VERSIONS:
            accepted(objects, version)
        fit(objects)

    def test_it_has_what_it_names(self, objects: Objects) -> None:
        assert {("ScaledObject", "vllm"), ("ServiceMonitor", "extproc")} <= objects.keys()
        ((_, config),) = of_kind(objects, "ConfigMap").items()
        assert config["data"] == {"envoy.yaml": "node: {id: mine, cluster: mine}\n"}
        container = objects["Deployment", "extproc"]["spec"]["template"]["spec"]["containers"][0]
        assert container["image"] == "registry.example.com/llm/extproc:0.1.0"
        server = objects["Deployment", "vllm"]["spec"]["template"]["spec"]["containers"][0]
        assert server["args"][0] == "--model=Qwen/Qwen3-8B"
        assert server["args"][1:] == container_of("vllm")["args"][1:]

    def test_all_of_it_is_in_its_namespace(self, objects: Objects) -> None:
        assert ("Namespace", "inference") in objects
        others = {key: item for key, item in objects.items() if key[0] != "Namespace"}
        assert {item["metadata"]["namespace"] for item in others.values()} == {"inference"}
        (subject,) = objects["RoleBinding", "extproc"]["subjects"]
        assert subject["namespace"] == "inference"
        (trigger,) = objects["ScaledObject", "vllm"]["spec"]["triggers"]
        assert trigger["metadata"]["scalerAddress"] == "extproc.inference.svc:9002"
