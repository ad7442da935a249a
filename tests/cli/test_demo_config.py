"""The demo's envoy.yaml, made of the shipped one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from ruamel.yaml.events import ScalarEvent

from extproc.cli import _demo_config
from extproc.cli._demo_config import Ports, choose_ports, write
from extproc.config.check import check
from extproc.config.load import load

PORTS = Ports(data=18080, envoy_admin=19901, grpc=19002, admin=19003, servers=(18001, 18002, 18003, 18004, 18005))


def test_the_written_file_has_no_problem_and_the_demos_ports(tmp_path: Path) -> None:
    file = tmp_path / "envoy.yaml"
    write(file, PORTS)
    loaded = load(file)
    assert list(check(loaded)) == []
    settings = loaded.settings
    assert settings is not None
    assert settings.grpc.listen == "127.0.0.1:19002"
    assert settings.admin.listen == "127.0.0.1:19003"
    assert [e.address for e in settings.pools["vllm"].endpoints] == [f"127.0.0.1:{port}" for port in PORTS.servers]


def test_every_text_in_the_written_file_is_quoted(tmp_path: Path) -> None:
    """Envoy takes an unquoted "on" or "n" for a boolean."""
    file = tmp_path / "envoy.yaml"
    write(file, PORTS)
    scalars = [event for event in YAML().parse(file.read_text()) if isinstance(event, ScalarEvent)]
    bare = {event.value for event in scalars if event.style is None}
    assert len(scalars) > 200
    assert [value for value in bare if not re.fullmatch(r"[\d.]+|true|false|null", value)] == []


def test_ports_in_use_are_replaced_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_demo_config, "free_port", lambda port, host, avoid: port if port != 8080 else 40_000)
    ports, moved = choose_ports(4)
    assert ports == Ports(40_000, 9901, 9002, 9003, (8001, 8002, 8003, 8004))
    assert moved == ["Envoy 8080 → 40000"]


def test_a_given_data_port_is_taken_as_it_is() -> None:
    ports, _ = choose_ports(4, data=9002)
    assert ports.data == 9002
    assert len({ports.data, ports.envoy_admin, ports.grpc, ports.admin, *ports.servers}) == 8
