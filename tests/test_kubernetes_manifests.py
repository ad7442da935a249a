"""Do the manifests of envoy/kubernetes/base say what Kubernetes takes, and fit each other and the service?

No cluster is needed: the schemas are those that Kubernetes publishes.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from aiohttp import web

from extproc.admin.guard import TOKEN_VARIABLE
from extproc.config.check import check
from extproc.config.load import load
from extproc.config.manifests.check import check_manifests
from extproc.config.settings import Settings
from extproc.discovery.kubernetes.source import slices_of
from tests.support.envoy_wheels import ALL as ENVOY_VERSIONS

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "envoy" / "kubernetes" / "base"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
OBJECTS: dict[tuple[str, str], dict[str, Any]] = {
    (item["kind"], item["metadata"]["name"]): item
    for name in KUSTOMIZATION["resources"]
    for item in yaml.safe_load_all((FOLDER / name).read_text())
}
VERSIONS = ("1.30", "1.37")

AUTOSCALE = """
          autoscale: {min_replicas: 2, max_replicas: 8, peers: ["extproc:9003"]}"""
# Where envoy.yaml differs from envoy/envoy-eds.yaml, below its first comment.
EDITS = (
    ("127.0.0.1:9002", "0.0.0.0:9002"),
    ("127.0.0.1:9003", "0.0.0.0:9003"),
    ('file: {path: "envoy/endpoints.yaml"}', f'kubernetes: {{service: "vllm"}}{AUTOSCALE}'),
    ("type: STATIC", "type: STRICT_DNS\n    dns_lookup_family: V4_PREFERRED"),
    ('address: "127.0.0.1", port_value: 9002', 'address: "extproc", port_value: 9002'),
    ("      max_body_bytes: ", '      drain: {state_file: "/var/lib/extproc/drains.json"}\n      max_body_bytes: '),
)


def pod_of(name: str) -> dict[str, Any]:
    template: dict[str, Any] = OBJECTS["Deployment", name]["spec"]["template"]
    return template


def container_of(name: str) -> dict[str, Any]:
    (container,) = pod_of(name)["spec"]["containers"]
    return dict(container)


def settings() -> Settings:
    found = load(FOLDER / "envoy.yaml").settings
    assert found is not None
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("key", OBJECTS, ids="/".join)
def test_kubernetes_accepts_it(key: tuple[str, str], version: str) -> None:
    kubernetes_validate.validate(OBJECTS[key], version, strict=True)


def test_a_mistyped_field_is_not_accepted() -> None:
    broken = {**OBJECTS["Deployment", "vllm"], "spce": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_every_file_is_applied() -> None:
    applied = {*KUSTOMIZATION["resources"], *KUSTOMIZATION["configMapGenerator"][0]["files"], "kustomization.yaml"}
    assert applied == {path.name for path in FOLDER.iterdir() if path.is_file()}


def test_the_configuration_is_the_shipped_one_but_for_what_kubernetes_needs() -> None:
    text = (ROOT / "envoy" / "envoy-eds.yaml").read_text()
    for find, replace in EDITS:
        assert find in text
        text = text.replace(find, replace)
    # As values: the comments that explain the differences differ.
    assert yaml.safe_load((FOLDER / "envoy.yaml").read_text()) == yaml.safe_load(text)


def test_the_checks_find_nothing() -> None:
    assert check(load(FOLDER / "envoy.yaml")) == ()
    manifests = [(name, (FOLDER / name).read_text()) for name in ("vllm.yaml",)]
    assert check_manifests(manifests, settings().drain.bounds) == ()


def test_the_role_allows_what_discovery_asks_for_and_no_more() -> None:
    discovery = settings().pools["vllm"].discovery
    assert discovery is not None
    assert discovery.kubernetes is not None
    query = slices_of(discovery.kubernetes)
    assert OBJECTS["Role", "extproc"]["rules"] == [
        {"apiGroups": [query.group], "resources": [query.plural], "verbs": ["list", "watch"]}
    ]
    (subject,) = OBJECTS["RoleBinding", "extproc"]["subjects"]
    assert subject["name"] == pod_of("extproc")["spec"]["serviceAccountName"]
    assert KUSTOMIZATION["namespace"] == OBJECTS["Namespace", "llm"]["metadata"]["name"]
    assert "namespace" not in subject, "Kustomize writes it, and writes another where the namespace is another"
    assert ("Service", discovery.kubernetes.service) in OBJECTS


@pytest.mark.parametrize("name", ["extproc", "gateway", "vllm"])
def test_services_and_budgets_select_the_pods_and_their_ports(name: str) -> None:
    labels = pod_of(name)["metadata"]["labels"]
    assert OBJECTS["Deployment", name]["spec"]["selector"]["matchLabels"] == labels
    assert OBJECTS["Service", name]["spec"]["selector"] == labels
    assert OBJECTS["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"] == labels
    ports = {port["name"]: port["containerPort"] for port in container_of(name)["ports"]}
    for port in OBJECTS["Service", name]["spec"]["ports"]:
        target = port.get("targetPort", port["port"])
        assert target in ports or target in ports.values()


def test_the_ports_are_those_that_the_service_and_envoy_listen_on() -> None:
    ports = {port["name"]: port["containerPort"] for port in container_of("extproc")["ports"]}
    assert (settings().grpc.listen, settings().admin.listen) == (
        f"0.0.0.0:{ports['grpc']}",
        f"0.0.0.0:{ports['admin']}",
    )
    envoy = yaml.safe_load((FOLDER / "envoy.yaml").read_text())
    listener = envoy["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"]
    assert listener == container_of("gateway")["ports"][0]["containerPort"]


def test_the_admin_port_can_be_reached_only_by_the_servers_its_like_and_prometheus() -> None:
    """It can drain servers."""
    rules = OBJECTS["NetworkPolicy", "extproc"]["spec"]["ingress"]
    admin = [rule for rule in rules if {"port": 9003} in rule["ports"]]
    assert [[*peer["podSelector"]["matchLabels"].values()] for rule in admin for peer in rule["from"]] == [
        ["vllm"],
        ["extproc"],
        ["prometheus"],
    ]
    assert all(rule["from"] and rule["ports"] for rule in rules)


def test_kubernetes_kills_the_service_only_after_it_has_had_its_time() -> None:
    needed_s = settings().shutdown_notice_s + settings().shutdown_grace_s
    assert pod_of("extproc")["spec"]["terminationGracePeriodSeconds"] > needed_s


def test_what_must_be_writable_is_mounted_and_everything_else_is_not() -> None:
    container = container_of("extproc")
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert mounted == {str(Path(settings().drain.state_file or "").parent)}


class TestTheHookOfVllm:
    """It runs for real, against an admin API that answers what the test wants."""

    SCRIPT: str = container_of("vllm")["lifecycle"]["preStop"]["exec"]["command"][2]

    async def run(self, *answers: dict[str, Any] | int, ip: str = "10.0.0.1") -> tuple[int | None, list[str]]:
        """The hook's exit status (None: it still waits) and what it asked for."""
        asked: list[str] = []
        script = iter(answers)

        async def handle(request: web.Request) -> web.Response:
            asked.append(f"{request.method} {request.path_qs}")
            answer = next(script)
            return web.Response(status=answer) if isinstance(answer, int) else web.json_response(answer)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        text = self.SCRIPT.replace("http://extproc:9003", f"http://127.0.0.1:{port}").replace("sleep(1)", "sleep(0.01)")
        hook = await asyncio.create_subprocess_exec(sys.executable, "-c", text, env={"POD_IP": ip})
        try:
            async with asyncio.timeout(20):
                status = await hook.wait()
        finally:
            if hook.returncode is None:
                hook.kill()
                await hook.wait()
            await runner.cleanup()
        return status, asked

    async def test_it_waits_for_the_end_of_the_drain(self) -> None:
        draining, drained = {"phase": "draining"}, {"phase": "drained"}
        status, asked = await self.run(draining, draining, 503, draining, drained)
        path = "/v1/endpoints/10.0.0.1:8000/drain"
        assert (status, asked) == (0, [f"POST {path}?by=self", *[f"GET {path}"] * 4])

    async def test_a_replica_that_has_not_heard_of_the_drain_is_told(self) -> None:
        status, asked = await self.run({"phase": "draining"}, {"phase": None}, {"phase": "expired"})
        assert (status, [line.split()[0] for line in asked]) == (0, ["POST", "GET", "POST"])

    async def test_an_ipv6_pod_names_itself_in_brackets(self) -> None:
        """case b03"""
        status, asked = await self.run({"phase": "drained"}, ip="fd00::10")
        assert (status, asked) == (0, ["POST /v1/endpoints/[fd00::10]:8000/drain?by=self"])

    def test_it_ends_before_the_grace_period_does(self) -> None:
        assert "start + 170, heard + 60" in self.SCRIPT
        assert pod_of("vllm")["spec"]["terminationGracePeriodSeconds"] > 170


def test_the_examples_of_the_manual_are_good_settings() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "kubernetes.md").read_text(), re.DOTALL)
    written = [yaml.safe_load(text) for text in examples]
    ours = [each for each in written if "kind" not in each]
    assert ours
    for each in ours:
        Settings.model_validate(each)


def test_every_image_is_of_one_exact_version() -> None:
    images = {name: container_of(name)["image"] for name in ("extproc", "gateway", "vllm")}
    assert (
        images["extproc"]
        == f"vllm-extproc:{tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}"
    )
    assert images["gateway"].removeprefix("envoyproxy/envoy:v") in ENVOY_VERSIONS
    assert re.fullmatch(r"vllm/vllm-openai:v\d+\.\d+\.\d+", images["vllm"])


def test_actions_want_the_token_that_the_manual_makes_and_without_it_all_else_works() -> None:
    (variable,) = container_of("extproc")["env"]
    secret = variable["valueFrom"]["secretKeyRef"]
    assert (variable["name"], secret["optional"]) == (TOKEN_VARIABLE, True)
    manual = (ROOT / "docs" / "kubernetes.md").read_text()
    assert f"create secret generic {secret['name']} --from-literal={secret['key']}=" in manual


@pytest.mark.parametrize("name", ["extproc", "gateway"])
def test_neither_runs_as_root_or_may_gain_rights(name: str) -> None:
    spec, container = pod_of(name)["spec"], container_of(name)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    # Only who asks the API has a token for it.
    assert spec.get("automountServiceAccountToken", True) == (name == "extproc")


@pytest.mark.parametrize("name", ["extproc", "gateway"])
def test_both_read_the_same_generated_configuration(name: str) -> None:
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    volumes = [volume for volume in pod_of(name)["spec"]["volumes"] if "configMap" in volume]
    (mount,) = (mount for mount in container_of(name)["volumeMounts"] if mount["name"] == volumes[0]["name"])
    assert [volume["configMap"]["name"] for volume in volumes] == [generated["name"]]
    assert f"{mount['mountPath']}/{generated['files'][0]}" in container_of(name)["args"]
