"""What does Istio make of EnvoyFilters? Its documented semantics, on plain data, as far as our manifests use them.

After the reference of EnvoyFilter and Istio's own code (1.28):

* EnvoyFilters are sorted by priority, then those of the root namespace come first, then by time of creation, then by
  name. Their patches are applied in that order *within one kind of object*: first listeners, then filter chains, then
  network filters, then HTTP filters. So a priority does not bring an HTTP_FILTER patch before another's
  NETWORK_FILTER patch.
* For network and HTTP filters all additions are made first, then all merges.
* INSERT_BEFORE and INSERT_AFTER stand at the *first* filter that matches. Where none does, nothing is inserted, and
  nothing is said. Without a filter in the match they insert at the beginning, and at the end.
* MERGE is protobuf's: fields of messages one by one, lists appended to, entries of maps replaced whole.
* Of HTTP_ROUTE patches with an insertion all but the match by name is left out here, of clusters the merge of TLS
  settings: these raise `UnsupportedError`, so that no test passes on what is not modelled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

ROOT_NAMESPACE = "istio-system"
MANAGER = "envoy.filters.network.http_connection_manager"
_VIRTUAL = ("virtualInbound", "virtualOutbound")
# Fields of Envoy's messages that are maps: an entry is replaced, not merged.
_MAPS = frozenset({"typed_per_filter_config", "typed_extension_protocol_options", "filter_metadata"})
_KINDS = ("LISTENER", "FILTER_CHAIN", "NETWORK_FILTER", "HTTP_FILTER", "ROUTE_CONFIGURATION", "VIRTUAL_HOST")
_KINDS += ("HTTP_ROUTE", "CLUSTER")
_OPERATIONS = frozenset({"MERGE", "ADD", "REMOVE", "INSERT_FIRST", "INSERT_BEFORE", "INSERT_AFTER", "REPLACE"})


class UnsupportedError(Exception):
    """A patch that this does not model."""


@dataclass(frozen=True)
class Proxy:
    """An Envoy that istiod configures."""

    context: str  # GATEWAY, SIDECAR_OUTBOUND or SIDECAR_INBOUND
    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Generated:
    """What istiod has generated for a proxy, as data in Envoy's own spelling."""

    listeners: list[Json]
    routes: list[Json]  # route configurations
    clusters: list[Json]


@dataclass
class Patch:
    """One entry of `configPatches`, and how often it has matched."""

    of: str  # the EnvoyFilter's name
    apply_to: str
    operation: str
    match: Json
    value: Any
    applied: int = 0


def in_order(filters: Iterable[Json], proxy: Proxy) -> list[Json]:
    """The EnvoyFilters that count for a proxy, in the order in which they are applied."""
    counting = [each for each in filters if _selects(each, proxy)]

    def key(each: Json) -> tuple[int, bool, str, str]:
        meta = each["metadata"]
        created = meta.get("creationTimestamp", "")
        return each["spec"].get("priority", 0), meta["namespace"] != ROOT_NAMESPACE, created, meta["name"]

    return sorted(counting, key=key)


def patched(generated: Generated, filters: Iterable[Json], proxy: Proxy) -> tuple[Generated, list[Patch]]:
    """The configuration with the filters' patches, and these: one with `applied` 0 has matched nothing."""
    made = copy.deepcopy(generated)
    patches = [patch for each in in_order(filters, proxy) for patch in _patches(each)]
    mine = [patch for patch in patches if patch.match.get("context", "ANY") in ("ANY", proxy.context)]
    by_kind = {kind: [patch for patch in mine if patch.apply_to == kind] for kind in _KINDS}
    for listener in made.listeners:
        _listener(listener, by_kind)
    for config in made.routes:
        _routes(config, by_kind, proxy)
    for cluster in made.clusters:
        for patch in by_kind["CLUSTER"]:
            if patch.operation == "MERGE" and _cluster_matches(cluster, patch):
                if "transport_socket" in patch.value:
                    raise UnsupportedError("the merge of a cluster's transport_socket")
                merge(cluster, patch.value)
                patch.applied += 1
    for patch in by_kind["CLUSTER"]:
        if patch.operation == "ADD":
            made.clusters.append(copy.deepcopy(patch.value))
            patch.applied += 1
    return made, patches


def merge(into: Json, value: Mapping[str, Any]) -> None:
    """Protobuf's merge of one message into another of the same type."""
    for key, new in value.items():
        old = into.get(key)
        if key == "typed_config" or old is None:  # an Any is bytes: it is replaced whole
            into[key] = copy.deepcopy(new)
        elif isinstance(old, dict) and isinstance(new, dict):
            if key in _MAPS:
                old.update(copy.deepcopy(new))
            else:
                merge(old, new)
        elif isinstance(old, list) and isinstance(new, list):
            old += copy.deepcopy(new)
        else:
            into[key] = copy.deepcopy(new)


def _selects(envoy_filter: Json, proxy: Proxy) -> bool:
    if envoy_filter["metadata"]["namespace"] not in (ROOT_NAMESPACE, proxy.namespace):
        return False
    labels = envoy_filter["spec"].get("workloadSelector", {}).get("labels", {})
    return all(proxy.labels.get(key) == value for key, value in labels.items())


def _patches(envoy_filter: Json) -> list[Patch]:
    made = []
    for entry in envoy_filter["spec"]["configPatches"]:
        apply_to, operation = entry["applyTo"], entry["patch"]["operation"]
        if apply_to not in _KINDS:
            raise UnsupportedError(f"applyTo: {apply_to}")
        match = entry.get("match", {})
        if "proxy" in match:
            raise UnsupportedError("match.proxy")
        made.append(Patch(envoy_filter["metadata"]["name"], apply_to, operation, match, entry["patch"].get("value")))
    return made


# Listeners.


def _listener(listener: Json, by_kind: Mapping[str, Sequence[Patch]]) -> None:
    for patch in by_kind["LISTENER"]:
        if _listener_matches(listener, patch):
            _only(patch, "MERGE")
            merge(listener, patch.value)
            patch.applied += 1
    for chain in [*listener.get("filter_chains", []), *filter(None, [listener.get("default_filter_chain")])]:
        _chain(listener, chain, by_kind)


def _chain(listener: Json, chain: Json, by_kind: Mapping[str, Sequence[Patch]]) -> None:
    def matching(kind: str) -> list[Patch]:
        return [p for p in by_kind[kind] if _listener_matches(listener, p) and _chain_matches(listener, chain, p)]

    for patch in matching("FILTER_CHAIN"):
        _only(patch, "MERGE")
        merge(chain, patch.value)
        patch.applied += 1
    network = matching("NETWORK_FILTER")
    for patch in network:
        _change(chain["filters"], patch, _network_filter(patch))
    for each in chain["filters"]:
        for patch in network:
            if patch.operation == "MERGE" and _network_filter(patch) in (None, each["name"]):
                _merge_filter(each, patch)
        if each["name"] == MANAGER:
            _http_filters(each, matching("HTTP_FILTER"))


def _http_filters(manager: Json, patches: Sequence[Patch]) -> None:
    patches = [patch for patch in patches if _network_filter(patch) in (None, manager["name"])]
    filters = manager["typed_config"]["http_filters"]
    for patch in patches:
        _change(filters, patch, _http_filter(patch))
    for each in filters:
        for patch in patches:
            if patch.operation == "MERGE" and _http_filter(patch) in (None, each["name"]):
                _merge_filter(each, patch)


def _change(filters: list[Json], patch: Patch, name: str | None) -> None:
    """All operations on a list of filters but MERGE. `name`: the filter that is matched; None: the match has none."""
    if patch.operation not in _OPERATIONS:
        raise UnsupportedError(f"operation: {patch.operation}")
    value = copy.deepcopy(patch.value)
    at = next((index for index, each in enumerate(filters) if each["name"] == name), None)
    match patch.operation:
        case "MERGE":
            return
        case "ADD":
            filters.append(value)
        case "INSERT_FIRST":
            filters.insert(0, value)
        case "INSERT_BEFORE" | "INSERT_AFTER" if name is None:
            filters.insert(0 if patch.operation == "INSERT_BEFORE" else len(filters), value)
        case "REPLACE" | "REMOVE" if name is None:
            return
        case "REMOVE":
            kept = [each for each in filters if each["name"] != name]
            patch.applied += len(kept) < len(filters)
            filters[:] = kept
            return
        case _ if at is None:
            return
        case "INSERT_BEFORE":
            filters.insert(at, value)
        case "INSERT_AFTER":
            filters.insert(at + 1, value)
        case _:  # REPLACE
            filters[at] = value
    patch.applied += 1


def _merge_filter(into: Json, patch: Patch) -> None:
    """Of a filter's configuration not the Any is merged, but what is in it."""
    value = patch.value
    into["name"] = value.get("name", into["name"])
    if "typed_config" in value:
        if value["typed_config"]["@type"] != into["typed_config"]["@type"]:
            raise UnsupportedError("a merge of two types")
        merge(into["typed_config"], value["typed_config"])
    if value.keys() - {"name", "typed_config"}:
        raise UnsupportedError(f"of a filter only typed_config is merged, not {value.keys()}")
    patch.applied += 1


def _listener_matches(listener: Json, patch: Patch) -> bool:
    wanted = patch.match.get("listener", {})
    if wanted.get("name", listener["name"]) != listener["name"]:
        return False
    if patch.apply_to != "LISTENER" and listener["name"] in _VIRTUAL:
        return True
    port = listener["address"]["socket_address"]["port_value"]
    return bool(wanted.get("portNumber", port) == port)


def _chain_matches(listener: Json, chain: Json, patch: Patch) -> bool:
    wanted = patch.match.get("listener", {})
    port = chain.get("filter_chain_match", {}).get("destination_port")
    if listener["name"] in _VIRTUAL and wanted.get("portNumber", port) != port:
        return False
    of_chain = wanted.get("filterChain", {})
    if of_chain.keys() - {"filter", "name"}:
        raise UnsupportedError(f"match.listener.filterChain: {of_chain.keys()}")
    return bool(of_chain.get("name", chain.get("name")) == chain.get("name"))


def _network_filter(patch: Patch) -> str | None:
    found = patch.match.get("listener", {}).get("filterChain", {}).get("filter")
    return None if found is None else found["name"]


def _http_filter(patch: Patch) -> str | None:
    found = patch.match.get("listener", {}).get("filterChain", {}).get("filter", {}).get("subFilter")
    return None if found is None else found["name"]


# Routes and clusters.


def _routes(config: Json, by_kind: Mapping[str, Sequence[Patch]], proxy: Proxy) -> None:
    def matching(kind: str, *conditions: Callable[[Patch], bool]) -> list[Patch]:
        return [p for p in by_kind[kind] if _config_matches(config, p, proxy) and all(c(p) for c in conditions)]

    def merge_all(into: Json, patches: Iterable[Patch]) -> None:
        for patch in patches:
            _only(patch, "MERGE")
            merge(into, patch.value)
            patch.applied += 1

    merge_all(config, matching("ROUTE_CONFIGURATION"))
    for host in config["virtual_hosts"]:

        def of_host(patch: Patch, host: Json = host) -> bool:
            return bool(_host_match(patch).get("name", host["name"]) == host["name"])

        merge_all(host, matching("VIRTUAL_HOST", of_host))
        for route in host["routes"]:

            def of_route(patch: Patch, route: Json = route) -> bool:
                wanted = _host_match(patch).get("route", {})
                if wanted.keys() - {"name"}:
                    raise UnsupportedError(f"match of a route by {wanted.keys()}")
                return bool(wanted.get("name", route.get("name")) == route.get("name"))

            merge_all(route, matching("HTTP_ROUTE", of_host, of_route))


def _host_match(patch: Patch) -> Json:
    found: Json = patch.match.get("routeConfiguration", {}).get("vhost", {})
    return found


def _config_matches(config: Json, patch: Patch, proxy: Proxy) -> bool:
    wanted = patch.match.get("routeConfiguration", {})
    if wanted.keys() - {"name", "vhost"}:
        raise UnsupportedError(f"match.routeConfiguration: {wanted.keys()}")
    return bool(wanted.get("name", config["name"]) == config["name"])


def _cluster_matches(cluster: Json, patch: Patch) -> bool:
    wanted = patch.match.get("cluster", {})
    if "name" in wanted:
        return bool(wanted["name"] == cluster["name"])
    _direction, port, subset, host = cluster["name"].split("|") if "|" in cluster["name"] else ("", "", "", "")
    return bool(
        wanted.get("service", host) == host
        and wanted.get("subset", subset) == subset
        and str(wanted.get("portNumber", port)) == port
    )


def _only(patch: Patch, operation: str) -> None:
    if patch.operation != operation:
        raise UnsupportedError(f"{patch.apply_to} with {patch.operation}")
