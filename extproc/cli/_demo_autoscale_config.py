"""What does the envoy.yaml of the autoscaling demo say? The shipped one's for fleets that change, and short times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extproc.cli._demo_autoscale_fleet import COLD_START_S, LIST, profile_path
from extproc.cli._demo_config import Ports, dump, with_ports
from extproc.cli._shipped import shipped

POOL = "vllm"
MIN_REPLICAS, MAX_REPLICAS = 2, 6
# Two minutes must show what takes an hour elsewhere.
WINDOW_S = 10.0
SYNC_S = 1.0
DESIGN_GROWTH_PER_S2 = 0.03  # requests/s each second and server
AUTOSCALE: dict[str, Any] = {
    "min_replicas": MIN_REPLICAS,
    "max_replicas": MAX_REPLICAS,
    "design_growth_per_s2": DESIGN_GROWTH_PER_S2,
    "cold_start": {"image_s": 1.0, "weights_gb": 16.0, "storage_gb_per_s": 2.0, "engine_s": COLD_START_S - 8.0},
    "window_s": WINDOW_S,
    "sync_s": SYNC_S,
    "down_after_s": 20.0,
    "stale_after_s": 15.0,
}


def write(path: Path, ports: Ports, folder: Path) -> None:
    """Write it to `path`; the list of the servers is in `folder`."""
    document = with_ports(shipped("envoy-eds.yaml"), ports)
    pool = document["node"]["metadata"]["extproc"]["pools"][POOL]
    pool["discovery"] = {"file": {"path": str(folder / LIST), "poll_s": 0.5}}
    pool["autoscale"] = {**AUTOSCALE, "profile": str(profile_path())}
    dump(path, document)
