"""Is extproc in this Envoy as the EnvoyFilter says? Reads a dump of the configuration that Envoy runs with.

    kubectl -n istio-system exec deploy/istio-ingressgateway -- pilot-agent request GET config_dump | python3 verify.py

Needs nothing but Python. One line for each thing that must be there; exit status 1 when one is not. An EnvoyFilter that
matches nothing is no error to Istio: this is how it shows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

ROUTE = "vllm-inference"
POOL = "outbound|8000||vllm.llm.svc.cluster.local"
SERVICE = "outbound|9002||extproc.llm.svc.cluster.local"
FILTERS = ["extproc", "extproc.buffer", "extproc.headers"]  # in this order
ROUTER = "envoy.filters.http.router"
MANAGER = "envoy.filters.network.http_connection_manager"
PICK = "x-gateway-destination-endpoint"


class Dump:
    """What of a dump is looked at."""

    def __init__(self, dump: Json) -> None:
        self.listeners: list[Json] = []
        self.routes: dict[str, Json] = {}  # by the name of their configuration
        self.clusters: dict[str, Json] = {}
        for part in dump["configs"]:
            for entry in part.get("static_listeners", []):
                self.listeners.append(entry["listener"])
            for entry in part.get("dynamic_listeners", []):
                if "active_state" in entry:
                    self.listeners.append(entry["active_state"]["listener"])
            for key in ("static_route_configs", "dynamic_route_configs"):
                for entry in part.get(key, []):
                    self.routes[entry["route_config"].get("name", "")] = entry["route_config"]
            for key in ("static_clusters", "dynamic_active_clusters"):
                for entry in part.get(key, []):
                    self.clusters[entry["cluster"]["name"]] = entry["cluster"]

    def managers(self) -> Iterator[tuple[Json, Json]]:
        """Each listener's HTTP connection managers."""
        for listener in self.listeners:
            chains = [*listener.get("filter_chains", []), listener.get("default_filter_chain", {})]
            for chain in chains:
                for each in chain.get("filters", []):
                    if each["name"] == MANAGER:
                        yield listener, each["typed_config"]


def route_config_of(manager: Json) -> str:
    """The name of the routes it uses."""
    if "rds" in manager:
        return str(manager["rds"]["route_config_name"])
    return str(manager.get("route_config", {}).get("name", ""))


def routes_named(config: Json, name: str) -> list[Json]:
    hosts = config.get("virtual_hosts", [])
    return [route for host in hosts for route in host.get("routes", []) if route.get("name") == name]


def findings(dump: Dump, route: str, pool: str, service: str) -> Iterator[tuple[bool, str]]:
    """What was looked for: whether it is so, in words."""
    leading = {name: routes_named(config, route) for name, config in dump.routes.items()}
    leading = {name: found for name, found in leading.items() if found}
    yield bool(leading), f'a route named "{route}"' + ("" if leading else ": does the VirtualService apply here?")
    for name, found in leading.items():
        for each in found:
            yield from _of_route(name, each, pool)
    managers = [(listener, manager) for listener, manager in dump.managers() if route_config_of(manager) in leading]
    if leading:
        yield bool(managers), "a listener that uses these routes"
    for listener, manager in managers:
        yield from _of_listener(listener, manager, service)
    yield from _of_pool(dump.clusters.get(pool), pool)
    yield from _of_service(dump.clusters.get(service), service)


def _of_route(config: str, route: Json, pool: str) -> Iterator[tuple[bool, str]]:
    where = f'routes "{config}"'
    cluster = route.get("route", {}).get("cluster")
    yield cluster == pool, f"{where}: the route leads to {pool}" + ("" if cluster == pool else f", not to {cluster}")
    missing = [name for name in FILTERS if name not in route.get("typed_per_filter_config", {})]
    cure = f": {', '.join(missing)} not; the HTTP_ROUTE patch has not matched" if missing else ""
    yield not missing, f"{where}: the route switches the filters on{cure}"


def _of_listener(listener: Json, manager: Json, service: str) -> Iterator[tuple[bool, str]]:
    where = f'listener "{listener.get("name", "")}"'
    names = [each["name"] for each in manager.get("http_filters", [])]
    for name in FILTERS:
        times = names.count(name)
        cure = "the HTTP_FILTER patches have not matched" if not times else "two EnvoyFilters add it"
        yield (
            times == 1,
            f"{where}: filter {name} once" + ("" if times == 1 else f", but it is there {times} times: {cure}"),
        )
    ours = [name for name in names if name in FILTERS]
    ordered = ours == FILTERS and names[-1:] == [ROUTER]
    yield ordered, f"{where}: in order, before the router" + ("" if ordered else f"; the order is {', '.join(names)}")
    settings = {each["name"]: each.get("typed_config", {}) for each in manager.get("http_filters", [])}
    if "extproc" in settings:
        grpc = settings["extproc"].get("grpc_service", {}).get("envoy_grpc", {})
        asked, named = grpc.get("cluster_name"), "authority" in grpc
        yield (
            asked == service,
            f"{where}: extproc is asked at {service}" + ("" if asked == service else f", not at {asked}"),
        )
        yield named, f"{where}: and by the name of a host" + ("" if named else ": give envoy_grpc an authority")
    limit = settings.get("extproc.buffer", {}).get("max_request_bytes")
    buffer = listener.get("per_connection_buffer_limit_bytes")
    cure = "" if buffer == limit else f", not {buffer or '1048576, the default'}: the LISTENER patch has not matched"
    yield buffer == limit, f"{where}: bodies up to {limit} bytes{cure}"
    removed = PICK in json.dumps(manager.get("early_header_mutation_extensions", []))
    yield (
        removed,
        f"{where}: a client's own destination header is removed"
        + ("" if removed else ": it is not; the NETWORK_FILTER patch has not matched"),
    )
    logged = service in json.dumps(manager.get("access_log", []))
    yield logged, f"{where}: extproc hears how requests end" + ("" if logged else ": it has no access log to it")


def _of_pool(cluster: Json | None, name: str) -> Iterator[tuple[bool, str]]:
    if cluster is None:
        yield False, f"cluster {name}: there is none; is the Service there, and its port named or of appProtocol http?"
        return
    yield _knows_endpoints(cluster, name)
    policies = cluster.get("load_balancing_policy", {}).get("policies", [{}])
    first = policies[0].get("typed_extension_config", {})
    sources = json.dumps(first.get("typed_config", {}).get("override_host_sources", []))
    follows = first.get("name") == "envoy.load_balancing_policies.override_host" and PICK in sources
    yield follows, f"cluster {name}: follows the pick" + ("" if follows else ": the CLUSTER patch has not matched")


def _of_service(cluster: Json | None, name: str) -> Iterator[tuple[bool, str]]:
    if cluster is None:
        yield False, f"cluster {name}: there is none; is the Service there, with appProtocol grpc, and visible here?"
        return
    yield _knows_endpoints(cluster, name)
    http2 = "http2_protocol_options" in json.dumps(cluster)
    yield http2, f"cluster {name}: speaks HTTP/2" + ("" if http2 else ": it does not; give the port appProtocol grpc")


def _knows_endpoints(cluster: Json, name: str) -> tuple[bool, str]:
    knows = cluster.get("type", "STATIC") != "ORIGINAL_DST"
    cure = "" if knows else ": it does not, the Service is headless; give it a cluster IP"
    return knows, f"cluster {name}: knows its endpoints{cure}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "file", nargs="?", type=argparse.FileType(), default=sys.stdin, help="the dump (default: stdin)"
    )
    parser.add_argument("--route", default=ROUTE, help=f"name of the route (default: {ROUTE})")
    parser.add_argument("--pool", default=POOL, help=f"cluster of the servers (default: {POOL})")
    parser.add_argument("--service", default=SERVICE, help=f"cluster of extproc (default: {SERVICE})")
    options = parser.parse_args()
    try:
        dump = Dump(json.load(options.file))
    except (ValueError, KeyError, TypeError, AttributeError):
        sys.stderr.write("verify.py: this is no dump of Envoy's configuration (GET /config_dump of its admin port)\n")
        return 2
    good = True
    for holds, words in findings(dump, options.route, options.pool, options.service):
        good &= holds
        sys.stdout.write(f"{'ok     ' if holds else 'WRONG  '}{words}\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
