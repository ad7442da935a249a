"""Does the shipped role allow what discovery asks the Kubernetes API for, and nothing else?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.discovery.test_kubernetes_source import following, settings_for, until
from tests.support.kubernetes_api import (
    NAMESPACE,
    KubernetesApi,
    inference_pool,
    kubernetes_api,
    pod,
    slice_endpoint,
    slice_of,
)

FILE = Path(__file__).parents[2] / "envoy" / "kubernetes" / "base" / "rbac.yaml"
WAYS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "service": ({"service": "vllm"}, ["discovery.kubernetes.service"]),
    "selector": (
        {"selector": {"app": "vllm"}, "port": 8000},
        ["discovery.kubernetes.selector and inference_pool, instead of the above:"],
    ),
    "inference_pool": (
        {"inference_pool": "vllm"},
        [
            "discovery.kubernetes.selector and inference_pool, instead of the above:",
            "discovery.kubernetes.inference_pool, beside the pods:",
        ],
    ),
}


def rules() -> dict[str, list[dict[str, Any]]]:
    """By the comment above them, those that are commented out too."""
    text = FILE.read_text().partition("\nrules:\n")[2].partition("\n---")[0]
    found: dict[str, list[str]] = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("# discovery."):
            title = line.removeprefix("# ")
        else:
            found.setdefault(title, []).append(line.removeprefix("# "))
    return {title: yaml.safe_load("\n".join(lines)) for title, lines in found.items()}


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    async with kubernetes_api() as running:
        running.put("endpointslices", slice_of("vllm", "s1", slice_endpoint("10.0.0.1", "u1")))
        running.put("pods", pod("a", "10.0.0.1"))
        running.put("inferencepools", inference_pool("vllm", {"app": "vllm"}, 8000))
        yield running


@pytest.mark.parametrize("way", WAYS)
async def test_the_rules_are_exactly_what_is_asked_for(api: KubernetesApi, tmp_path: Path, way: str) -> None:
    options, titles = WAYS[way]
    async with following(settings_for(api, tmp_path, **options)) as found:
        watches = 2 if way == "inference_pool" else 1
        await until(lambda: found.last == ["10.0.0.1:8000"] and api.watches == watches)
    asked = set()
    for each in api.asked:
        *root, namespaces, namespace, plural = each.path.strip("/").split("/")
        assert (namespaces, namespace) == ("namespaces", NAMESPACE), "a Role reaches no further than its namespace"
        asked.add((root[1] if root[0] == "apis" else "", plural, each.verb))
    chosen = [rule for title in titles for rule in rules()[title]]
    allowed = {
        (group, plural, verb)
        for rule in chosen
        for group in rule["apiGroups"]
        for plural in rule["resources"]
        for verb in rule["verbs"]
    }
    assert asked == allowed
    # A role that is bound to a name allows a list or a watch that asks for that name alone.
    for rule in chosen:
        for name in rule.get("resourceNames", ()):
            queries = [each.query for each in api.asked if [each.plural] == rule["resources"]]
            assert {query["fieldSelector"] for query in queries} == {f"metadata.name={name}"}


def test_every_rule_of_the_file_is_for_one_of_the_ways() -> None:
    assert rules().keys() == {title for _, titles in WAYS.values() for title in titles}
    role = next(item for item in yaml.safe_load_all(FILE.read_text()) if item["kind"] == "Role")
    assert role["rules"] == rules()["discovery.kubernetes.service"]
