"""What of a changed configuration can be followed without a restart?"""

from __future__ import annotations

import pytest

from extproc.config import load
from extproc.config.changes import changes
from extproc.config.settings import Settings

BASE = """
pools:
  vllm: {endpoints: [{address: "10.0.0.1:8000"}, {address: "10.0.0.2:8000", weight: 2}]}
  found: {discovery: {file: {path: servers.yaml}}}
default_pool: vllm
"""


def settings(text: str) -> Settings:
    loaded = load(text)
    assert loaded.settings is not None, loaded.problems
    return loaded.settings


def test_the_same_settings_are_no_change() -> None:
    found = changes(settings(BASE), settings(BASE + "# a comment\n"))
    assert (found.endpoints, found.restart) == ({}, ())


def test_the_servers_of_a_pool_and_their_options_are_followed() -> None:
    new = settings(BASE.replace('"10.0.0.1:8000"', '"10.0.0.9:8000"').replace("weight: 2", "drained: true"))
    found = changes(settings(BASE), new)
    assert {name: [e.address for e in listed] for name, listed in found.endpoints.items()} == {
        "vllm": ["10.0.0.9:8000", "10.0.0.2:8000"]
    }
    assert found.endpoints["vllm"][1].drained
    assert found.restart == ()


@pytest.mark.parametrize(
    ("edit", "restart"),
    [
        (("default_pool: vllm", "default_pool: found"), ("default_pool",)),
        (("default_pool: vllm", "default_pool: vllm\nscrape: {interval_s: 1}"), ("scrape.interval_s",)),
        (
            ("default_pool: vllm", "default_pool: vllm\ngrpc: {tls: {cert_file: c, key_file: k}}"),
            ("grpc.tls",),
        ),
        (("servers.yaml", "others.yaml"), ("pools.found.discovery.file.path",)),
        (
            ("discovery: {file: {path: servers.yaml}}", 'endpoints: [{address: "10.0.1.1:8000"}]'),
            ("pools.found.discovery",),
        ),
        (("found:", "other:"), ("pools.found (removed)", "pools.other (added)")),
        (("vllm: {", "vllm: {dns_refresh_s: 9, "), ("pools.vllm.dns_refresh_s",)),
    ],
)
def test_all_else_counts_after_a_restart_and_is_named(edit: tuple[str, str], restart: tuple[str, ...]) -> None:
    assert edit[0] in BASE
    found = changes(settings(BASE), settings(BASE.replace(*edit)))
    assert sorted(found.restart) == sorted(restart)
    assert found.endpoints == {}
