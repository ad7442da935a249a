"""What does the demo's envoy.yaml say? The shipped one, with the demo's ports in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from extproc.cli._ports import free_port
from extproc.cli._shipped import shipped

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Ports:
    """Where everything listens, on loopback."""

    data: int
    envoy_admin: int
    grpc: int
    admin: int
    servers: tuple[int, ...]


def choose_ports(servers: int, data: int | None = None) -> tuple[Ports, list[str]]:
    """The usual ports as far as they are free, and for each that is not, who moved where. `data` is taken as it is."""
    chosen: list[int] = []
    moved: list[str] = []

    def port(usual: int, what: str) -> int:
        found = free_port(usual, HOST, avoid=frozenset(chosen))
        if found != usual:
            moved.append(f"{what} {usual} → {found}")
        chosen.append(found)
        return found

    if data is not None:
        chosen.append(data)
    return (
        Ports(
            data=data if data is not None else port(8080, "Envoy"),
            envoy_admin=port(9901, "its admin"),
            grpc=port(9002, "the service"),
            admin=port(9003, "its admin"),
            servers=tuple(port(8001 + i, f"server {i + 1}") for i in range(servers)),
        ),
        moved,
    )


def write(path: Path, ports: Ports) -> None:
    """Write the shipped configuration with these ports to `path`."""
    document = with_ports(shipped(), ports)
    clusters = {cluster["name"]: cluster for cluster in document["static_resources"]["clusters"]}
    _set_endpoints(clusters["vllm"], ports.servers)
    dump(path, document)


def with_ports(text: str, ports: Ports) -> dict[str, Any]:
    """The configuration with these ports, but for those of the servers."""
    document: dict[str, Any] = YAML(typ="safe").load(text)
    ours = document["node"]["metadata"]["extproc"]
    ours["grpc"]["listen"] = f"{HOST}:{ports.grpc}"
    ours["admin"]["listen"] = f"{HOST}:{ports.admin}"
    ours["shutdown_grace_s"] = 3
    document["admin"]["address"] = _address(ports.envoy_admin)
    document["static_resources"]["listeners"][0]["address"] = _address(ports.data)
    clusters = {cluster["name"]: cluster for cluster in document["static_resources"]["clusters"]}
    _set_endpoints(clusters["extproc"], [ports.grpc])
    return document


def dump(path: Path, document: dict[str, Any]) -> None:
    """Write it, every text in quotes."""
    yaml = YAML()
    yaml.width = 120
    # Envoy takes an unquoted "on" or "n" for a boolean, whatever YAML 1.2 says.
    yaml.representer.add_representer(str, _quoted)
    yaml.representer.add_representer(type(None), _null)
    with path.open("w", encoding="utf-8") as out:
        yaml.dump(document, out)


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": HOST, "port_value": port}}


def _set_endpoints(cluster: dict[str, Any], ports: Sequence[int]) -> None:
    cluster["load_assignment"]["endpoints"] = [
        {"lb_endpoints": [{"endpoint": {"address": _address(port)}} for port in ports]}
    ]


def _quoted(representer: Any, text: str) -> Any:
    return representer.represent_scalar("tag:yaml.org,2002:str", text, style='"')


def _null(representer: Any, _: None) -> Any:
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")
