"""Does docker-compose.yml name only things that exist? No container engine is needed to tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
import yaml

from extproc.cli.main import app

ROOT = Path(__file__).parent.parent
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
ENVOY = yaml.safe_load((ROOT / "envoy" / "envoy.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def parsed(service: str) -> dict[str, Any]:
    """The command's options, as the command line itself reads them; it raises on one that does not exist."""
    name, *args = SERVICES[service]["command"]
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    return dict(command.make_context(name, list(args)).params)


def mounted(service: str) -> dict[str, Path]:
    pairs = (volume.split(":")[:2] for volume in SERVICES[service].get("volumes", ()))
    return {inside: ROOT / outside for outside, inside in pairs}


def endpoint_ports(cluster: str) -> list[int]:
    found = next(c for c in ENVOY["static_resources"]["clusters"] if c["name"] == cluster)
    endpoints = found["load_assignment"]["endpoints"][0]["lb_endpoints"]
    return [e["endpoint"]["address"]["socket_address"]["port_value"] for e in endpoints]


def test_every_mounted_file_exists() -> None:
    for service in SERVICES:
        for inside, outside in mounted(service).items():
            assert outside.is_file(), f"{service}: {inside} would be an empty folder: {outside} does not exist"


def test_the_service_and_envoy_read_the_same_mounted_configuration() -> None:
    assert mounted("extproc")[str(parsed("extproc")["envoy"])] == ROOT / "envoy" / "envoy.yaml"
    _, flag, path = SERVICES["envoy"]["command"]
    assert flag == "-c"
    assert mounted("envoy")[path] == ROOT / "envoy" / "envoy.yaml"


def test_the_simulated_servers_listen_where_envoy_expects_the_fleet() -> None:
    sim = parsed("vllm")
    assert [sim["port"] + i for i in range(sim["count"])] == endpoint_ports("vllm")


def test_the_published_port_is_the_listeners() -> None:
    listener = ENVOY["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"]
    assert SERVICES["envoy"]["ports"] == [f"127.0.0.1:8080:{listener}"]


def test_everything_shares_envoys_network_since_all_its_addresses_are_loopback_ones() -> None:
    for name in SERVICES.keys() - {"envoy"}:
        assert SERVICES[name]["network_mode"] == "service:envoy", name


def test_docker_kills_the_service_only_after_it_has_had_its_time() -> None:
    settings = ENVOY["node"]["metadata"]["extproc"]
    needed_s = settings.get("shutdown_notice_s", 5) + settings.get("shutdown_grace_s", 30)
    assert int(SERVICES["extproc"]["stop_grace_period"].removesuffix("s")) > needed_s


def test_the_image_runs_as_nobody_special_and_starts_the_service() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    user = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert user
    assert user[-1] not in ("root", "0")
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert all((ROOT / name).exists() for name in copied), copied
