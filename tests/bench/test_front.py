"""The shipped configurations become arms by a change of addresses and of nothing else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.common import front
from bench.common.process import ROOT
from bench.overhead.arms import SHAPES, shape_config

PORTS = front.FrontPorts(listener=1001, envoy_admin=1002, grpc=1003, service_admin=1004)
SERVERS = (2001, 2002, 2003, 2004)


def shipped(name: str = "extproc-a") -> dict[str, Any]:
    return front.read_config(ROOT / "envoy" / SHAPES[name])


def ports_in(node: object) -> set[int]:
    if isinstance(node, dict):
        found = {node["port_value"]} if "port_value" in node else set()
        return found.union(*(ports_in(value) for value in node.values()))
    if isinstance(node, list):
        return set().union(*(ports_in(value) for value in node))
    return set()


def without_addresses(config: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(config)
    del config["admin"]["address"], config["node"]["metadata"]["extproc"]["grpc"]["listen"]
    del config["node"]["metadata"]["extproc"]["admin"]["listen"]
    for listener in config["static_resources"]["listeners"]:
        del listener["address"]
    for cluster in config["static_resources"]["clusters"]:
        del cluster["load_assignment"]["endpoints"]
    return config


@pytest.mark.parametrize("name", SHAPES)
def test_only_addresses_change(name: str) -> None:
    before = shipped(name)
    after = front.with_addresses(before, PORTS, SERVERS)

    assert ports_in(after) == {1001, 1002, 1003, *SERVERS}
    own = after["node"]["metadata"]["extproc"]
    assert own["grpc"]["listen"] == "127.0.0.1:1003"
    assert own["admin"]["listen"] == "127.0.0.1:1004"
    assert without_addresses(after) == without_addresses(before)


@pytest.mark.parametrize("name", SHAPES)
def test_an_arm_changes_the_profile_besides_or_keeps_the_default_as_its_name_says(name: str) -> None:
    arm, plain = shape_config(name, PORTS, SERVERS), front.with_addresses(shipped(name), PORTS, SERVERS)

    scheduling = arm["node"]["metadata"]["extproc"]["scheduling"]
    assert (arm == plain) == name.endswith("-cache-aware")
    if arm != plain:
        assert scheduling["profile"] == "least-loaded"
        scheduling["profile"] = "cache-aware"
        assert arm == plain


def test_envoy_alone_has_nothing_of_ours_left() -> None:
    alone = front.without_service(front.with_addresses(shipped(), PORTS, SERVERS))

    text = json.dumps(alone)
    assert "ext_proc" not in text
    assert "override_host" not in text
    assert "http_grpc" not in text
    assert ports_in(alone) == {1001, 1002, *SERVERS}
    (cluster,) = alone["static_resources"]["clusters"]
    policy = cluster["load_balancing_policy"]["policies"][0]["typed_extension_config"]["name"]
    assert policy == "envoy.load_balancing_policies.least_request"


def test_strings_that_envoy_would_read_as_booleans_stay_strings(tmp_path: Path) -> None:
    config = {"node": {"id": "n", "cluster": "on"}, "flag": True, "port": "0123"}

    front.write_config(tmp_path / "envoy.yaml", config)

    text = (tmp_path / "envoy.yaml").read_text()
    assert '"id": "n"' in text
    assert yaml.safe_load(text) == config


def test_a_configuration_without_ext_proc_is_refused() -> None:
    config = front.with_addresses(shipped(), PORTS, SERVERS)

    with pytest.raises(ValueError, match=r"envoy\.filters\.http\.ext_proc"):
        front.with_addresses(front.without_service(config), PORTS, SERVERS)


def test_a_configuration_without_a_pool_is_refused() -> None:
    config = shipped()
    config["static_resources"]["clusters"] = [
        cluster for cluster in config["static_resources"]["clusters"] if "load_balancing_policy" not in cluster
    ]

    with pytest.raises(ValueError, match="0 clusters with the override_host policy"):
        front.with_addresses(config, PORTS, SERVERS)
