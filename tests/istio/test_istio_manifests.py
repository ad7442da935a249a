"""Do the manifests of envoy/istio say what Kubernetes, Istio and the Gateway API take, and fit each other and us?"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from extproc.config.check import check
from extproc.config.load import load
from extproc.discovery.kubernetes.source import pods_of, pool_of, slices_of
from tests.istio import manifests, schemas
from tests.istio.istiod import cluster_name, clusters
from tests.istio.manifests import APPLIED, FOLDER, built, envoy_filter, objects
from tests.istio.patching import Proxy
from tests.support.envoy_config import cluster as cluster_of
from tests.support.envoy_config import connection_manager, http_filter, shipped
from tests.support.envoy_docs import yaml_under

Json = dict[str, Any]

KUBERNETES = "1.37"
FILES = [path.relative_to(FOLDER).as_posix() for path in sorted(FOLDER.rglob("*.yaml"))]
SETTINGS = [name for name in FILES if name.endswith("settings.yaml")]
PATCHES = [name for name in FILES if name.endswith(".patch.yaml")]
KUSTOMIZATIONS = [name for name in FILES if name.endswith("kustomization.yaml")]
MANIFESTS = [name for name in FILES if name not in (*SETTINGS, *PATCHES, *KUSTOMIZATIONS)]
POOL, SERVICE = "outbound|8000||vllm.llm.svc.cluster.local", "outbound|9002||extproc.llm.svc.cluster.local"


def validate(item: Json) -> None:
    """Raises for what the API server would refuse, or drop as unknown."""
    if (item["apiVersion"], item["kind"]) in schemas.SCHEMAS:
        schemas.validate(item)
    else:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)


@pytest.mark.parametrize("file", MANIFESTS)
def test_each_manifest_is_valid(file: str) -> None:
    found = objects(file)
    assert found
    for item in found:
        validate(item)


@pytest.mark.parametrize("folder", APPLIED)
def test_what_is_applied_is_valid(folder: str) -> None:
    found = built(folder)
    assert found
    for item in found:
        validate(item)
    keys = [(item["kind"], item["metadata"]["namespace"], item["metadata"]["name"]) for item in found]
    assert len(keys) == len(set(keys))


def test_every_file_is_used() -> None:
    """By a kustomization, or (the settings of what runs outside of the cluster) by hand."""
    used = {"outside/settings.yaml"}
    for name in KUSTOMIZATIONS:
        said, folder = yaml.safe_load((FOLDER / name).read_text()), Path(name).parent
        mentioned = [entry for entry in said["resources"] if not entry.startswith("..")]
        mentioned += [entry["path"] for entry in said.get("patches", [])]
        mentioned += [file.partition("=")[2] for each in said.get("configMapGenerator", []) for file in each["files"]]
        used |= {(folder / entry).as_posix() for entry in (*mentioned, "kustomization.yaml")}
    assert used == set(FILES)


@pytest.mark.parametrize(
    ("file", "kind", "change"),
    [
        ("gateway/envoy-filter.yaml", "EnvoyFilter", lambda o: o["spec"].update(workLoadSelector={})),
        ("gateway/envoy-filter.yaml", "EnvoyFilter", lambda o: o["spec"]["configPatches"][0].update(applyTo="LISTNER")),
        (
            "gateway/envoy-filter.yaml",
            "EnvoyFilter",
            lambda o: o["spec"]["configPatches"][2]["patch"].update(operation="INSERT"),
        ),
        ("mesh/destination-rules.yaml", "DestinationRule", lambda o: o["spec"]["trafficPolicy"].update(tlsMode="x")),
        ("mesh/peer-authentication.yaml", "PeerAuthentication", lambda o: o["spec"]["mtls"].update(mode="strict")),
        ("inference-pool/inference-pool.yaml", "InferencePool", lambda o: o["spec"]["endpointPickerRef"].pop("port")),
        ("inference-pool/inference-pool.yaml", "InferencePool", lambda o: o["spec"].update(extensionRef={"name": "x"})),
        ("inference-pool/gateway.yaml", "HTTPRoute", lambda o: o["spec"]["rules"][0]["timeouts"].update(request="0")),
    ],
)
def test_a_mistake_is_not_accepted(file: str, kind: str, change: Any) -> None:
    item = copy.deepcopy(next(each for each in objects(file) if each["kind"] == kind))
    change(item)
    with pytest.raises(jsonschema.ValidationError):
        validate(item)


@pytest.mark.parametrize("file", SETTINGS)
def test_the_settings_are_without_fault(file: str) -> None:
    loaded = load(FOLDER / file)
    assert loaded.settings is not None
    assert check(loaded) == ()


def test_one_number_for_the_largest_body() -> None:
    """case a01"""
    limits = {manifests.settings(folder)["max_body_bytes"] for folder in ("extproc", "outside", "inference-pool")}
    for folder in ("gateway", "sidecar"):
        text = (FOLDER / folder / "envoy-filter.yaml").read_text()
        numbers = re.findall(r"(per_connection_buffer_limit_bytes|max_request_bytes): (\d+)", text)
        assert len(numbers) == 3
        limits |= {int(number) for _, number in numbers}
        assert re.findall(r"request_body_buffer_limit: (\d+)", text) == [str(2 * 16777216)]
    assert limits == {16777216}


# The EnvoyFilters are envoy/envoy.yaml, as patches.


def values(folder: str, apply_to: str) -> list[Json]:
    patches = envoy_filter(folder)["spec"]["configPatches"]
    return [each["patch"]["value"] for each in patches if each["applyTo"] == apply_to]


def renamed(value: Any) -> Any:
    """With Istio's name of the cluster in the place of ours, and a host that proxies take."""
    host = SERVICE.rpartition("|")[2]
    ours = f'"cluster_name": "{SERVICE}", "authority": "{host}"'
    return json.loads(json.dumps(value).replace('"cluster_name": "extproc"', ours))


def test_what_the_filters_do_is_what_envoy_yaml_does() -> None:
    plain = shipped("A")
    by_name = {value["name"]: value for value in values("gateway", "HTTP_FILTER")}
    assert list(by_name) == ["extproc", "extproc.buffer", "extproc.headers", "envoy.filters.http.router"]
    for name, ours in (
        ("ext_proc", "extproc"),
        ("buffer", "extproc.buffer"),
        ("header_mutation", "extproc.headers"),
        ("router", "envoy.filters.http.router"),
    ):
        assert by_name[ours]["typed_config"] == renamed(http_filter(plain, name))
    (manager,) = [value["typed_config"] for value in values("gateway", "NETWORK_FILTER")]
    early = "early_header_mutation_extensions"
    assert manager[early] == connection_manager(plain)[early]
    (log,), (plain_log,) = manager["access_log"], connection_manager(plain)["access_log"]
    assert log["typed_config"] == renamed(plain_log["typed_config"])
    (cluster,) = values("gateway", "CLUSTER")
    plain_cluster = cluster_of(plain, "vllm")
    assert cluster == {key: plain_cluster[key] for key in cluster}


def test_the_filters_are_off_but_on_the_route() -> None:
    inserted = [value for value in values("gateway", "HTTP_FILTER") if "disabled" in value]
    assert [value["disabled"] for value in inserted] == [True] * 3
    (route,) = values("gateway", "HTTP_ROUTE")
    assert list(route["typed_per_filter_config"]) == [value["name"] for value in inserted]
    assert all("disabled" not in each for each in route["typed_per_filter_config"].values())


def test_the_sidecars_filter_is_the_gateways_in_another_context() -> None:
    text = json.dumps(envoy_filter("gateway")["spec"]["configPatches"])
    text = text.replace('"context": "GATEWAY"', '"context": "SIDECAR_OUTBOUND"')
    text = text.replace('"portNumber": 8080', '"portNumber": 8000')
    assert json.loads(text) == envoy_filter("sidecar")["spec"]["configPatches"]


@pytest.mark.parametrize("folder", ["gateway", "sidecar"])
def test_it_has_an_explicit_priority_and_is_anchored_on_the_router(folder: str) -> None:
    """case a18"""
    spec = envoy_filter(folder)["spec"]
    assert spec["priority"] > 0
    for patch in spec["configPatches"]:
        if patch["applyTo"] == "HTTP_FILTER":
            chain = patch["match"]["listener"]["filterChain"]
            assert chain["filter"]["subFilter"] == {"name": "envoy.filters.http.router"}


# Names agree.


def test_the_clusters_that_are_named_are_those_that_istio_makes() -> None:
    made = {each["name"] for each in clusters(manifests.mesh_objects())}
    assert {POOL, SERVICE} <= made
    for folder in ("gateway", "sidecar"):
        text = json.dumps(envoy_filter(folder))
        assert set(re.findall(r"outbound\|[^\"]+", text)) == {SERVICE}
        (patch,) = [each for each in envoy_filter(folder)["spec"]["configPatches"] if each["applyTo"] == "CLUSTER"]
        assert cluster_name(patch["match"]["cluster"]["service"], patch["match"]["cluster"]["portNumber"]) == POOL


def test_the_routes_are_named_as_the_filters_expect_and_try_as_many_servers_as_are_named() -> None:
    for file in ("gateway/gateway.yaml", "sidecar/virtual-service.yaml"):
        (service,) = [item for item in objects(file) if item["kind"] == "VirtualService"]
        names = [rule["name"] for rule in service["spec"]["http"]]
        assert names == ["vllm-direct", "vllm-inference"]
        assert all(rule["timeout"] == "0s" for rule in service["spec"]["http"])  # case a28
        hosts = load(FOLDER / "extproc" / "settings.yaml").settings.scheduling.hosts  # type: ignore[union-attr]
        assert service["spec"]["http"][1]["retries"]["attempts"] == hosts - 1
    for folder in ("gateway", "sidecar"):
        (patch,) = [each for each in envoy_filter(folder)["spec"]["configPatches"] if each["applyTo"] == "HTTP_ROUTE"]
        assert patch["match"]["routeConfiguration"]["vhost"]["route"]["name"] == "vllm-inference"
        (manager,) = [value["typed_config"] for value in values(folder, "NETWORK_FILTER")]
        (mapper,) = manager["local_reply_config"]["mappers"]
        assert "'vllm-inference'" in json.dumps(mapper)


def test_the_gateways_filter_selects_the_gateways_pods() -> None:
    (gateway,) = [item for item in objects("gateway/gateway.yaml") if item["kind"] == "Gateway"]
    spec = envoy_filter("gateway")["spec"]
    assert spec["workloadSelector"]["labels"] == gateway["spec"]["selector"]
    assert Proxy("GATEWAY", "istio-system", gateway["spec"]["selector"])


@pytest.mark.parametrize("folder", ["mesh", "inference-pool"])
def test_the_role_allows_what_discovery_asks_for_and_no_more(folder: str) -> None:
    found = {(item["kind"], item["metadata"]["name"]): item for item in built(folder)}
    settings = load(FOLDER / ("extproc" if folder == "mesh" else folder) / "settings.yaml").settings
    assert settings is not None
    discovery = settings.pools["vllm"].discovery
    assert discovery is not None
    assert discovery.kubernetes is not None
    asked = discovery.kubernetes
    queries = [slices_of(asked)] if folder == "mesh" else [pool_of(asked), pods_of(asked, "app=vllm")]
    allowed = [(rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in found["Role", "extproc"]["rules"]]
    assert allowed == [([each.group], [each.plural], ["list", "watch"]) for each in queries]


def test_the_pods_of_the_mesh_have_a_sidecar_and_those_of_the_picker_none() -> None:
    def pod(folder: str) -> Json:
        (found,) = [item for item in built(folder) if item["kind"] == "Deployment"]
        template: Json = found["spec"]["template"]
        return template

    mesh, picker = pod("mesh"), pod("inference-pool")
    assert mesh["metadata"]["labels"]["sidecar.istio.io/inject"] == "true"
    assert picker["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
    annotations = mesh["metadata"]["annotations"]
    assert annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] == "8000"
    assert annotations["traffic.sidecar.istio.io/excludeInboundPorts"] == "9003"
    assert [each["name"] for each in picker["spec"]["initContainers"]] == ["certificate"]


def test_the_picker_is_where_the_pool_says_and_serves_the_certificate_it_has_made() -> None:
    found = {(item["kind"], item["metadata"]["name"]): item for item in built("inference-pool")}
    reference = found["InferencePool", "vllm"]["spec"]["endpointPickerRef"]
    ports = found["Service", reference["name"]]["spec"]["ports"]
    (port,) = [each for each in ports if each["port"] == reference["port"]["number"]]
    assert port["appProtocol"] == "http2"
    tls = manifests.settings("inference-pool")["grpc"]["tls"]
    command = found["Deployment", "extproc"]["spec"]["template"]["spec"]["initContainers"][0]["command"]
    assert command[command.index("-keyout") + 1] == tls["key_file"]
    assert command[command.index("-out") + 1] == tls["cert_file"]
    (backend,) = found["HTTPRoute", "llm"]["spec"]["rules"][0]["backendRefs"]
    assert (backend["group"], backend["kind"], backend["name"]) == (
        "inference.networking.k8s.io",
        "InferencePool",
        "vllm",
    )


@pytest.mark.parametrize("folder", ["mesh", "inference-pool"])
def test_the_pods_are_confined_and_outlive_the_goodbye(folder: str) -> None:
    (deployment,) = [item for item in built(folder) if item["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        confined = container["securityContext"]
        assert confined["readOnlyRootFilesystem"]
        assert not confined["allowPrivilegeEscalation"]
        assert confined["capabilities"] == {"drop": ["ALL"]}
    settings = load(FOLDER / ("extproc" if folder == "mesh" else folder) / "settings.yaml").settings
    assert settings is not None
    goodbye = settings.shutdown_notice_s + settings.shutdown_grace_s
    assert pod["terminationGracePeriodSeconds"] > goodbye
    annotations = deployment["spec"]["template"]["metadata"].get("annotations", {})
    if "proxy.istio.io/config" in annotations:
        drained = yaml.safe_load(annotations["proxy.istio.io/config"])["terminationDrainDuration"]
        assert goodbye < float(drained.removesuffix("s")) < pod["terminationGracePeriodSeconds"]


# The page.


def test_the_page_shows_what_istio_takes() -> None:
    (rule,) = yaml_under("istio.md", "Mutual TLS")
    schemas.validate(rule)
    own, shown = rule["spec"]["host"], rule["spec"]["trafficPolicy"]["portLevelSettings"]
    (shipped_rule,) = [
        item for item in objects("mesh/destination-rules.yaml") if item["metadata"]["name"] == rule["metadata"]["name"]
    ]
    assert own == shipped_rule["spec"]["host"]
    assert shown[0]["port"] == shipped_rule["spec"]["trafficPolicy"]["portLevelSettings"][0]["port"]


def test_the_page_says_how_to_name_servers_outside() -> None:
    page = (FOLDER.parents[1] / "docs" / "istio.md").read_text()
    renamed_hosts = dict(re.findall(r"s/([\w.]+)/([\w.]+)/g", page))
    hosts = {host for item in objects("outside/service-entries.yaml") for host in item["spec"]["hosts"]}
    assert set(renamed_hosts.values()) == hosts
    text = "".join((FOLDER / "gateway" / name).read_text() for name in ("gateway.yaml", "envoy-filter.yaml"))
    assert set(re.findall(r"\w+\.llm\.svc\.cluster\.local", text)) == set(renamed_hosts)
