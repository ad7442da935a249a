"""Arms differ from the shipped configuration in what their names say, and a wrong pick does not go unnoticed."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.common import front
from bench.common.process import ArmFailedError
from bench.routing import arms
from bench.routing.fleet import parse_counter

SERVERS = (8101, 8102, 8103)
PORTS = front.FrontPorts(listener=8100, envoy_admin=9901, grpc=9002, service_admin=9003)


def config(name: str) -> dict[str, Any]:
    return arms.envoy_config(name, front.with_addresses(front.read_config(arms.SHIPPED), PORTS, SERVERS))


def pool(name: str) -> dict[str, Any]:
    return next(each for each in config(name)["static_resources"]["clusters"] if each["name"] == "vllm")


def test_every_arm_of_the_design_is_there() -> None:
    assert set(arms.ARMS) - arms.EXTRA_ARMS == {
        *("extproc-cache-aware", "extproc-least-loaded"),
        *("envoy-round-robin", "envoy-least-request", "envoy-ring-hash"),
        *("vllm-router-cache-aware", "vllm-router-consistent-hash", "sglang-router-cache-aware"),
        *("smg-cache-aware", "smg-least-load"),
    }


@pytest.mark.parametrize(("name", "profile"), arms.SERVICE_ARMS.items())
def test_a_service_arm_is_the_shipped_file_with_its_profile(name: str, profile: str) -> None:
    changed, shipped = config(name), front.with_addresses(front.read_config(arms.SHIPPED), PORTS, SERVERS)
    own = changed["node"]["metadata"]["extproc"]
    assert own["scheduling"]["profile"] == profile
    own["scheduling"]["profile"] = shipped["node"]["metadata"]["extproc"]["scheduling"]["profile"]
    del own["shutdown_notice_s"]
    if name == arms.TWO_WORKERS:
        assert own.pop("workers") == 2
        front.add_worker(shipped)
    assert changed == shipped


@pytest.mark.parametrize(("name", "policy"), arms.ENVOY_ARMS.items())
def test_an_envoy_arm_has_its_policy_and_nothing_of_the_service(name: str, policy: str) -> None:
    text = json.dumps(config(name))
    assert policy in text
    assert "ext_proc" not in text
    assert "override_host" not in text
    assert len(pool(name)["load_assignment"]["endpoints"][0]["lb_endpoints"]) == len(SERVERS)


def test_only_the_ring_hash_looks_at_the_session_header() -> None:
    asked = {name: "x-session-id" in json.dumps(config(name)) for name in arms.ENVOY_ARMS}
    assert asked == {"envoy-round-robin": False, "envoy-least-request": False, "envoy-ring-hash": True}


@pytest.mark.envoy
@pytest.mark.parametrize("name", arms.ENVOY_ARMS)
def test_envoy_accepts_the_configuration(name: str, tmp_path: Path) -> None:
    path = tmp_path / "envoy.yaml"
    front.write_config(path, config(name))
    done = subprocess.run(
        [front.find_envoy(), "--mode", "validate", "-c", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


GOOD = {"streams_started": 10, "picks": 10, "spurious_msgs_received": 0, "served_elsewhere": 0, "unpicked_requests": 0}


def test_a_pick_for_each_request_served_where_it_was_picked_is_no_complaint() -> None:
    assert arms.complaints(dict.fromkeys(GOOD, 0), GOOD, 10) == []
    assert arms.complaints(GOOD, {**GOOD, "streams_started": 25, "picks": 25}, 15) == []
    assert arms.complaints({}, {}, 10) == []  # an arm without the service


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"picks": 9}, "9 picks for 10 requests"),
        ({"streams_started": 0}, "0 streams_started for 10 requests"),
        ({"served_elsewhere": 1}, "served_elsewhere = 1"),
        ({"spurious_msgs_received": 2}, "spurious_msgs_received = 2"),
        ({"failure_mode_allowed": 3}, "failure_mode_allowed = 3"),
    ],
)
def test_requests_that_went_elsewhere_are_complained_of(change: dict[str, int], words: str) -> None:
    assert arms.complaints(dict.fromkeys(GOOD, 0), {**GOOD, **change}, 10) == [words]


def test_the_service_counters_are_summed_over_labels() -> None:
    page = (
        "# TYPE extproc_picks_total counter\n"
        'extproc_picks_total{pool="a"} 3.0\nextproc_picks_total{pool="b"} 4.0\nextproc_served_elsewhere_total 1.0\n'
    )
    counters = arms.parse_service_counters(page)
    assert (counters["picks"], counters["served_elsewhere"], counters["unpicked_requests"]) == (7, 1, 0)


def test_a_counter_that_is_not_on_the_page_is_an_error_and_not_zero() -> None:
    pattern = re.compile(r"^hits (\S+)$", re.MULTILINE)
    assert parse_counter("queries 5\nhits 2.5\n", pattern) == 2.5
    with pytest.raises(ArmFailedError, match="hits"):
        parse_counter("queries 5\n", pattern)
