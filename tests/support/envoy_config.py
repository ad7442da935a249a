"""How does a test run one of the shipped files? Only its ports and addresses are replaced."""

from __future__ import annotations

import json
import os
import random
import socket
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.support.envoy_wheels import ROOT

SHAPES = {"A": "envoy.yaml", "B": "envoy-headers-then-body.yaml", "C": "envoy-full-duplex.yaml"}
FILES = {**SHAPES, "EDS": "envoy-eds.yaml"}
Json = dict[str, Any]


def shipped(shape: str) -> Json:
    """A shipped file, as data: of an exchange shape, or `EDS`."""
    config = yaml.safe_load((ROOT / "envoy" / FILES[shape]).read_text())
    unshared: Json = json.loads(json.dumps(config))  # YAML anchors would make one change appear in several places
    return unshared


def _share() -> tuple[int, int]:
    """The ports of this process. Those of `pytest -n 2` have halves: what one is about to listen on the other must not
    take. The ports that the system gives to outgoing connections lie above: any scrape could take one of these."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return (20_000, 26_000) if int(worker.removeprefix("gw")) % 2 == 0 else (26_000, 32_000)


_GIVEN: deque[int] = deque(maxlen=500)  # no test has as many


def free_port() -> int:
    """A port that nobody listens on just now, and that was not given lately."""
    for _ in range(1000):
        port = random.SystemRandom().randrange(*_share())
        if port in _GIVEN:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _GIVEN.append(port)
            return port
    raise RuntimeError("no free port left from {} to {}".format(*_share()))


def place(config: Json, *, listener: int, admin: int, grpc: int, service_admin: int, servers: Iterable[int]) -> None:
    """Put a shipped file onto these ports of loopback. A source of servers is the test's to set."""
    config["static_resources"]["listeners"][0]["address"] = _socket(listener)
    config["admin"]["address"] = _socket(admin)
    config["node"]["metadata"]["extproc"]["grpc"]["listen"] = f"127.0.0.1:{grpc}"
    config["node"]["metadata"]["extproc"]["admin"]["listen"] = f"127.0.0.1:{service_admin}"
    _endpoints(config, "extproc", [grpc])
    if "load_assignment" in cluster(config, "vllm"):
        _endpoints(config, "vllm", servers)


def write(config: Json, path: Path) -> Path:
    """JSON is YAML in which every string is quoted, as Envoy's reader needs it."""
    path.write_text(json.dumps(config, indent=1))
    return path


def cluster(config: Json, name: str) -> Json:
    return next(c for c in config["static_resources"]["clusters"] if c["name"] == name)


def connection_manager(config: Json) -> Json:
    found: Json = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def http_filter(config: Json, name: str) -> Json:
    """The typed_config of `envoy.filters.http.<name>`."""
    filters = connection_manager(config)["http_filters"]
    found: Json = next(f["typed_config"] for f in filters if f["name"] == f"envoy.filters.http.{name}")
    return found


def settings_of(config: Json) -> Json:
    """The service's own block."""
    found: Json = config["node"]["metadata"]["extproc"]
    return found


def full_duplex_both_ways(config: Json) -> None:
    """Shape C as InferencePool gateways ask for it: the response passes through the service, too."""
    processor = http_filter(config, "ext_proc")
    processor["processing_mode"] |= {
        "response_header_mode": "SEND",
        "response_body_mode": "FULL_DUPLEX_STREAMED",
        "response_trailer_mode": "SEND",
    }


def _endpoints(config: Json, name: str, ports: Iterable[int]) -> None:
    cluster(config, name)["load_assignment"]["endpoints"] = [
        {"lb_endpoints": [{"endpoint": {"address": _socket(port)}} for port in ports]}
    ]


def _socket(port: int) -> Json:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
