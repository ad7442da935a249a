"""What `extproc init` writes: is it the shipped file with what was wished, and does the check pass on it?"""

from __future__ import annotations

import difflib
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.config import endpoints_file
from extproc.config.check import check
from extproc.config.load import load
from extproc.config.starter import place
from extproc.config.starter.envoy_yaml import envoy_yaml, servers_file, source
from extproc.config.starter.patch import Patch
from extproc.config.starter.place import Place
from extproc.config.starter.wish import USUAL, Shape, Wish, WishError, settle
from extproc.scheduling.profiles import PROFILES

ENVOY = Path(__file__).parents[2] / "envoy"
FLEETS = (
    ("10.0.0.1:8000",),
    ("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:18000"),
    ("[fd00::10]:8000", "[::ffff:10.0.0.1]:8001"),
    ("localhost:8001", "127.0.0.1:8002"),
    ("vllm-0.vllm.llm.svc.cluster.local:8000", "10.0.0.1:8000"),
    ("no:8000", "on:8000", "y:8000"),  # names that Envoy would take for booleans
)
MODELS = ((), ("Qwen/Qwen2.5-7B-Instruct",), ("a", 'odd "name": {x}', "yes"))
PORTS = (
    {},
    {"listen": Place("::", 18080), "grpc": Place("0.0.0.0", 19002), "admin": Place("10.9.9.9", 19003)},
    {"listen": Place("127.0.0.1", 1), "grpc": Place("::", 2), "admin": Place("::1", 3), "envoy-admin": Place("::1", 4)},
)
KEY_FILES = (None, '/etc/keys/it\'s "here"')


def wish_of(fleet: tuple[str, ...], ports: dict[str, Place] | None = None, **more: Any) -> Wish:
    servers = place.servers(list(fleet))
    return Wish(servers, settle(servers, ports or {})[0], **more)


def written(wish: Wish) -> str:
    return envoy_yaml((ENVOY / source(wish)).read_text(), wish, "envoy.yaml", "1.2.3")


def combinations() -> list[dict[str, Any]]:
    """Sixteen of some 4,000: each value of each wish occurs, beside changing values of the others."""
    shapes: list[str] = [*Shape, "servers-file"]
    wishes: dict[str, Sequence[Any]] = {
        "fleet": FLEETS,
        "models": MODELS,
        "ports": PORTS,
        "api_key_file": KEY_FILES,
        "profile": [*PROFILES, None],
        "max_servers": [None, 12],
        "workers": [1, 3],
        "shape": shapes,
    }
    rng = random.Random(6)
    columns = {name: [values[n % len(values)] for n in range(16)] for name, values in wishes.items()}
    for column in columns.values():
        rng.shuffle(column)
    return [{name: column[n] for name, column in columns.items()} for n in range(16)]


@pytest.mark.parametrize("wished", combinations())
def test_the_check_passes_on_what_is_written_and_it_says_what_was_wished(
    wished: dict[str, Any], tmp_path: Path
) -> None:
    if wished["shape"] == "servers-file":
        wished = wished | {"shape": Shape.BODY_FIRST, "servers_file": str(tmp_path / "servers.yaml")}
    wish = wish_of(**wished)
    if wish.servers_file is not None:
        Path(wish.servers_file).write_text(servers_file(wish))
        assert endpoints_file.problems_of(Path(wish.servers_file)) == ()
    text = written(wish)
    loaded = load(text, "envoy.yaml")
    assert list(check(loaded)) == []
    settings = loaded.settings
    assert settings is not None
    pool = settings.pools["vllm"]
    if wish.servers_file is None:
        endpoints = [(each.address, each.model) for each in pool.endpoints]
        assert endpoints == [(each.text, wish.models) for each in wish.servers]
        assert pool.dns_family == ("v4_preferred" if wish.by_name else "all")
    else:
        assert pool.discovery is not None
        assert pool.discovery.file is not None
        assert pool.discovery.file.path == wish.servers_file
        listed = yaml.safe_load(Path(wish.servers_file).read_text())["endpoints"]
        assert [each if isinstance(each, str) else each["address"] for each in listed] == [s.text for s in wish.servers]
        assert not wish.models or all(each["model"] == list(wish.models) for each in listed)
    assert settings.scheduling.profile == (wish.profile or "cache-aware")
    assert settings.grpc.listen == wish.ports["grpc"].text
    assert settings.admin.listen == wish.ports["admin"].text
    assert (pool.autoscale.max_replicas if pool.autoscale is not None else None) == wish.max_servers
    assert (pool.models.bearer_token_file if pool.models is not None else None) == wish.api_key_file
    document = yaml.safe_load(text)
    assert at(document["static_resources"]["listeners"][0]) == wish.ports["listen"]
    assert at(document["admin"]) == wish.ports["envoy-admin"]
    clusters = {each["name"]: each for each in document["static_resources"]["clusters"]}
    called = clusters["extproc"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    first = wish.ports["grpc"].from_here
    assert [at(each["endpoint"]) for each in called] == [Place(first.host, p) for p in settings.worker_ports]
    assert settings.workers == wish.workers


def at(holder: dict[str, Any]) -> Place:
    address = holder["address"]["socket_address"]
    return Place(address["address"], address["port_value"])


@pytest.mark.parametrize("shape", Shape)
def test_all_but_what_was_wished_is_as_shipped(shape: Shape) -> None:
    """Comments included: what a reader of the shipped file knows holds for this one."""
    wish = wish_of(("10.0.0.1:8000", "10.0.0.2:8000"), {"listen": Place("0.0.0.0", 8088)}, shape=shape)
    shipped = (ENVOY / source(wish)).read_text()
    old, new = (text[text.index("\nnode:") :].splitlines() for text in (shipped, written(wish)))
    changed = [line for line in difflib.ndiff(old, new) if line[0] in "+-"]
    removed, added = ([line[2:].strip() for line in changed if line[0] == sign] for sign in "-+")
    assert added == [
        'address: {socket_address: {address: "0.0.0.0", port_value: 8088}}',
        '- endpoint: {address: {socket_address: {address: "10.0.0.1", port_value: 8000}}}',
        '- endpoint: {address: {socket_address: {address: "10.0.0.2", port_value: 8000}}}',
    ]
    assert len(removed) == 6  # the listener's address, four servers, the options of the last one


def test_what_is_written_into_it_is_quoted() -> None:
    """Envoy takes an unquoted no for a boolean."""
    assert 'address: "no", port_value: 8000' in written(wish_of(("no:8000",)))


def test_its_first_lines_are_commands_with_its_name_and_ports() -> None:
    head = written(wish_of(("10.0.0.1:8000",), {"listen": Place("0.0.0.0", 81)})).partition("\nnode:")[0]
    assert "in front of 1 vLLM server," in head
    assert re.search(r"envoy -c envoy.yaml +clients on 0.0.0.0:81, admin on 127.0.0.1:9901\n", head)
    assert all(line.startswith("#") for line in head.strip().splitlines())
    assert max(map(len, head.splitlines())) <= 120


# Places.


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("10.0.0.1:8000", Place("10.0.0.1", 8000)),
        (" vLLM-1.Example.:8000 ", Place("vllm-1.example.", 8000)),
        ("[FD00::0010]:8000", Place("fd00::10", 8000)),
        ("[::ffff:a00:1]:8000", Place("::ffff:10.0.0.1", 8000)),
        ("http://10.0.0.1:8000", Place("10.0.0.1", 8000)),
        ("http://10.0.0.1:8000/v1/", Place("10.0.0.1", 8000)),
        ("under_score:80", Place("under_score", 80)),
    ],
)
def test_a_server_is_read(text: str, read: Place) -> None:
    assert place.server(text) == read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10.0.0.1", '"10.0.0.1" has no port; write host:port'),
        ("10.0.0.1:", '"10.0.0.1:" has no port; write host:port'),
        (":8000", '":8000" has no host; write host:port'),
        ("8000", '"8000" has no port; write host:port'),
        ("10.0.0.1:eight", '"10.0.0.1:eight": the port must be a number from 1 to 65535'),
        ("10.0.0.1:0", '"10.0.0.1:0": the port must be a number from 1 to 65535'),
        ("10.0.0.1:65536", '"10.0.0.1:65536": the port must be a number from 1 to 65535'),
        ("fd00::10:8000", '"fd00::10:8000": put an IPv6 address in brackets, as in [fd00::10]:8000'),
        ("[fd00::10]", '"[fd00::10]" has no port; write host:port'),
        (
            "[fe80::1%eth0]:8000",
            '"[fe80::1%eth0]:8000": an IPv6 zone id cannot be routed to by Envoy; leave out "%..."',
        ),
        ("10.0.0.300:8000", '"10.0.0.300" is no IP address; four numbers from 0 to 255 with dots between'),
        ("10.0.1:8000", '"10.0.1" is no IP address; four numbers from 0 to 255 with dots between'),
        ("vllm one:8000", '"vllm one" is neither an IP address nor a DNS name'),
        ("-a:8000", '"-a" is neither an IP address nor a DNS name'),
        ("vllm..example:8000", '"vllm..example" is neither an IP address nor a DNS name'),
        ("bücher:8000", '"bücher" is neither an IP address nor a DNS name'),
        ("10.0.0.1:8000/v1", '"10.0.0.1:8000/v1" has a path; write host:port'),
        ("http://10.0.0.1", '"http://10.0.0.1" has no port; write 10.0.0.1:80 if it is 80'),
        ("http://10.0.0.1:8000/v1/models", '"http://10.0.0.1:8000/v1/models" is no server; write host:port'),
        ("http://me@10.0.0.1:8000", '"http://me@10.0.0.1:8000" is no server; write host:port'),
        ("ftp://10.0.0.1:8000", '"ftp://10.0.0.1:8000" is no server; write host:port'),
        ("https://10.0.0.1:8000", '"https://10.0.0.1:8000": TLS towards the servers is not set up here'),
        ("0.0.0.0:8000", '"0.0.0.0:8000" is where a server listens, not where it is reached; write its address'),
        (
            "[::]:8000",
            '"[::]:8000" is where a server listens, not where it is reached; write its address, as [::1]:8000',
        ),
    ],
)
def test_what_is_no_server_is_told_with_the_cure(text: str, message: str) -> None:
    with pytest.raises(ValueError) as failure:
        place.server(text)
    assert str(failure.value).startswith(message)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["10.0.0.1:80", "10.0.0.1:80"], "10.0.0.1:80 is given twice; leave one out"),
        (["[fd00::1]:80", "[fd00:0::1]:80"], "[fd00::1]:80 is given twice; leave one out"),
        (["localhost:80 127.0.0.1:80"], "127.0.0.1:80 and localhost:80 are one server; leave one out"),
        (["VLLM:80,vllm:80"], "vllm:80 is given twice; leave one out"),
        ([" , "], "no server is given; write host:port, as 10.0.0.1:8000"),
    ],
)
def test_a_server_given_twice_or_none_is_told(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError) as failure:
        place.servers(texts)
    assert str(failure.value) == message


def test_several_servers_may_stand_in_one_text() -> None:
    assert [each.text for each in place.servers(["a:1, b:2", "c:3"])] == ["a:1", "b:2", "c:3"]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("8080", "0.0.0.0:8080"),
        (":8080", "0.0.0.0:8080"),
        ("localhost:8080", "127.0.0.1:8080"),
        ("[::]:8080", "[::]:8080"),
    ],
)
def test_a_port_to_open_is_read(text: str, read: str) -> None:
    assert place.listener(text).text == read


@pytest.mark.parametrize("text", ["", "example.org:80", "0.0.0.0", "0.0.0.0:0", "::8080", "80:80:80", "99999"])
def test_what_cannot_be_opened_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|port|brackets"):
        place.listener(text)


@given(st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_no_text_breaks_the_reading_and_what_is_read_reads_the_same_again(text: str) -> None:
    for read in (place.server, place.listener):
        try:
            found = read(text)
        except ValueError:
            continue
        assert read(found.text) == found


# What does not fit together.


def test_usual_ports_give_way_to_a_server_on_this_machine() -> None:
    ports, moved = settle(place.servers(["127.0.0.1:8080", "localhost:9002", "10.0.0.1:9901"]), {})
    assert {name: each.port for name, each in ports.items()} == {
        "listen": 8081,
        "grpc": 9003,
        "admin": 9004,
        "envoy-admin": 9901,
    }
    assert [line.partition(" is ")[0] for line in moved] == ["--listen", "--grpc", "--admin"]


@pytest.mark.parametrize(
    ("more", "option", "message"),
    [
        ({"profile": "cache-awre"}, "profile", 'unknown "cache-awre"; did you mean "cache-aware"?'),
        ({"max_servers": 1}, "autoscale", "1 is less than the 2 servers given"),
        ({"workers": 2, "ports": {"admin": Place("127.0.0.1", 9012)}}, "admin", "127.0.0.1:9012 is the port of --grpc"),
        ({"workers": 2, "ports": {"grpc": Place("127.0.0.1", 65530)}}, "grpc", "leaves no ports for 2 workers"),
        ({"shape": Shape.FULL_DUPLEX, "servers_file": "/s"}, "servers-file", "goes with --shape body-first only"),
    ],
)
def test_what_cannot_be_is_told_with_the_option(more: dict[str, Any], option: str, message: str) -> None:
    with pytest.raises(WishError) as failure:
        wish_of(("10.0.0.1:8000", "10.0.0.2:8000"), **more)
    assert (failure.value.option, str(failure.value)[: len(message)]) == (option, message)


@pytest.mark.parametrize(
    ("servers", "ports", "option"),
    [
        (("127.0.0.1:8000",), {"listen": Place("0.0.0.0", 8000)}, "listen"),
        (("10.0.0.1:8000",), {"listen": Place("10.0.0.1", 8000)}, "listen"),
        (("10.0.0.1:8000",), {"grpc": Place("0.0.0.0", 7000), "admin": Place("127.0.0.1", 7000)}, "grpc"),
    ],
)
def test_one_port_for_two_is_refused(servers: tuple[str, ...], ports: dict[str, Place], option: str) -> None:
    with pytest.raises(WishError, match="is the port of") as failure:
        wish_of(servers, ports)
    assert failure.value.option == option


def test_the_same_port_on_another_machine_is_none_of_ours() -> None:
    assert wish_of(("10.0.0.1:8080",)).ports["listen"] == USUAL["listen"]


# The patch.


def test_a_patch_replaces_values_and_nothing_else() -> None:
    patch = Patch('a: {b: "x"}   # kept\nc: 1   # goes\nd:\n- name: n\n  v: [1]\n# kept too\n- {name: m}\n\n# end\n')
    patch.value('"y"', "a", "b")
    patch.rest_of_line("2", "c")
    patch.value("[2]", "d", "n", "v")
    assert patch.text() == 'a: {b: "y"}   # kept\nc: 2\nd:\n- name: n\n  v: [2]\n# kept too\n- {name: m}\n\n# end\n'


def test_a_patch_replaces_the_items_of_a_list_up_to_what_follows() -> None:
    patch = Patch("a:\n  - b: 1\n    c: {d: 1}\n  - e\n  # about f\nf: 1\n")
    patch.items("x\n  - y", "a")
    assert patch.text() == "a:\n  - x\n  - y\n  # about f\nf: 1\n"


@pytest.mark.parametrize("path", [("x",), ("a", "x"), ("a", 0), ("l", 2), ("l", "x"), ("a", "b", "c")])
def test_a_patch_says_where_a_path_leads_nowhere(path: tuple[str | int, ...]) -> None:
    with pytest.raises(LookupError, match="nothing at"):
        Patch(json.dumps({"a": {"b": 1}, "l": [1, {"name": "m"}]})).value("1", *path)


def test_a_patch_refuses_what_overlaps() -> None:
    patch = Patch("a: {b: 1}\n")
    patch.value("{}", "a")
    patch.value("2", "a", "b")
    with pytest.raises(ValueError, match="overlap"):
        patch.text()
