"""What does an envoy.yaml for these servers say? The shipped one, with the servers, ports and wishes put in."""

from __future__ import annotations

import json

from extproc.config.starter.patch import Patch, Step
from extproc.config.starter.place import Place
from extproc.config.starter.wish import Shape, Wish

_FILES = {
    Shape.BODY_FIRST: "envoy.yaml",
    Shape.HEADERS_THEN_BODY: "envoy-headers-then-body.yaml",
    Shape.FULL_DUPLEX: "envoy-full-duplex.yaml",
}
_OURS = ("node", "metadata", "extproc")
_POOL = ("static_resources", "clusters", "vllm")
_SERVICE = ("static_resources", "clusters", "extproc")
_ENDPOINTS = ("load_assignment", "endpoints", 0, "lb_endpoints")
_BETWEEN = "\n        - "  # two endpoints


def source(wish: Wish) -> str:
    """The name of the shipped file that it is made from."""
    return "envoy-eds.yaml" if wish.servers_file is not None else _FILES[wish.shape]


def envoy_yaml(shipped: str, wish: Wish, name: str, version: str) -> str:
    """`shipped`: the text of `source(wish)`; `name`: the file's own, for its commands; `version`: of extproc.

    Raises:
        LookupError: the shipped text is not of the form that this knows.
    """
    patch = Patch(shipped[_body(shipped) :])
    ports = wish.ports
    patch.value(_quoted(ports["grpc"].text), *_OURS, "grpc", "listen")
    if wish.workers == 1:
        patch.value(_quoted(ports["admin"].text), *_OURS, "admin", "listen")
    else:
        listen = f"{{listen: {_quoted(ports['admin'].text)}}}"
        patch.rest_of_line(f"{listen}\n      workers: {wish.workers}       # docs/workers.md", *_OURS, "admin")
    if wish.profile is not None:
        patch.rest_of_line(f"{_quoted(wish.profile)}     # docs/routing.md", *_OURS, "scheduling", "profile")
    _pool(patch, wish)
    _address(patch, ports["envoy-admin"], "admin")
    _address(patch, ports["listen"], "static_resources", "listeners", 0)
    called = [f"endpoint: {{address: {{socket_address: {_socket(each.from_here)}}}}}" for each in wish.worker_places]
    patch.items(_BETWEEN.join(called), *_SERVICE, *_ENDPOINTS)
    if wish.servers_file is None:
        _servers(patch, wish)
    return _header(wish, name, version) + patch.text()


def servers_file(wish: Wish) -> str:
    """The file of servers, as of `discovery.file`."""
    lines = [
        "# The servers. Change this while all runs: extproc and Envoy follow within about a second.",
        "# An entry is host:port, or has options: weight, model, metrics_port, drained.",
        "endpoints:",
    ]
    for each in wish.servers:
        address = _quoted(each.text)
        lines.append(f"- {{address: {address}, model: {_list(wish.models)}}}" if wish.models else f"- {address}")
    return "\n".join(lines) + "\n"


def _servers(patch: Patch, wish: Wish) -> None:
    if wish.by_name:
        # IPv4 where a name has both: most servers listen there alone, and `localhost` has both nearly everywhere.
        by_dns = "STRICT_DNS             # names are looked up again and again\n    dns_lookup_family: V4_PREFERRED"
        patch.value(by_dns, *_POOL, "type")
    options = f"\n          metadata: {{filter_metadata: {{extproc: {{model: {_list(wish.models)}}}}}}}"
    items = [
        f"endpoint: {{address: {{socket_address: {_socket(each)}}}}}{options if wish.models else ''}"
        for each in wish.servers
    ]
    patch.items(_BETWEEN.join(items), *_POOL, *_ENDPOINTS)


def _pool(patch: Patch, wish: Wish) -> None:
    """What is set for the pool alone."""
    settings = []
    if wish.max_servers is not None:
        settings.append(f"autoscale: {{min_replicas: 1, max_replicas: {wish.max_servers}}}     # docs/autoscale.md")
    if wish.api_key_file is not None:
        settings.append(f"models: {{bearer_token_file: {_quoted(wish.api_key_file)}}}     # /v1/models wants it")
    lines = "".join(f"\n          {each}" for each in settings)
    place = (*_OURS, "pools", "vllm")
    if wish.servers_file is not None:  # the source stands last in its pool
        patch.rest_of_line(f"{{path: {_quoted(wish.servers_file)}}}{lines}", *place, "discovery", "file")
    elif settings:
        patch.rest_of_line(lines, *place)


def _header(wish: Wish, name: str, version: str) -> str:
    ports = wish.ports
    count = f"{len(wish.servers)} vLLM server{'s' * (len(wish.servers) != 1)}"
    rows = {
        f"extproc check {name}": "what is wrong with this file, after you have changed something",
        f"extproc up {name}": "Envoy and extproc, together; or each by itself:",
        f"envoy -c {name}": f"clients on {ports['listen'].text}, admin on {ports['envoy-admin'].text}",
        f"extproc serve --envoy {name}": f"gRPC on {ports['grpc'].text}, admin on {ports['admin'].text}",
    }
    width = max(map(len, rows)) + 4
    lines = [
        f"Envoy in front of {count}, with extproc choosing the server for each inference request.",
        f"Made by `extproc init` {version}, from the {source(wish)} that comes with it. It is yours to change.",
        "",
        *(f"  {command:<{width}}{what}" for command, what in rows.items()),
        "",
        "The pages that comments name are those of extproc's documentation. LIMIT marks one number that stands in",
        'several places. Quote every text that could be read as yes or no ("on", "n"): Envoy takes an unquoted one for',
        "a boolean.",
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines) + "\n"


def _body(text: str) -> int:
    """Where the comment at the top ends."""
    position = 0
    for line in text.splitlines(keepends=True):
        if line.strip() and not line.startswith("#"):
            return position
        position += len(line)
    raise LookupError("the shipped file has nothing but comments")


def _address(patch: Patch, place: Place, *path: Step) -> None:
    patch.value(_socket(place), *path, "address", "socket_address")


def _socket(place: Place) -> str:
    return f"{{address: {_quoted(place.host)}, port_value: {place.port}}}"


def _list(names: tuple[str, ...]) -> str:
    return "[" + ", ".join(_quoted(name) for name in names) + "]"


def _quoted(text: str) -> str:
    """As a YAML text in double quotes."""
    return json.dumps(text)
