"""Do the endpoints of an EDS cluster come from the service, soon, and do hosts go when their servers do?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from extproc.config import pools
from extproc.config.codes import Finding
from extproc.config.problems import suggest
from extproc.config.rules.rule import ERROR, WARNING, Say, rule
from extproc.config.view import Cluster, View

SOON_S = 5.0
_FIELD = "eds_cluster_config.eds_config"
_BACK_OFF_BASE_S, _BACK_OFF_MAX_S = 0.5, 30.0  # Envoy's own
_MAX_PER_BASE = 10  # Envoy's, where only the base is given


def _eds(view: View) -> list[Cluster]:
    return [pool for pool in view.pools if pools.is_eds(pool.node)]


def _config(pool: Cluster) -> Any:
    """Its ConfigSource; None: there is none."""
    config = pool.message.eds_cluster_config
    return config.eds_config if config is not None else None


def _service(pool: Cluster) -> tuple[Any, str]:
    """The GrpcService that is asked, and the cluster it calls; (None, "") where none is."""
    config = _config(pool)
    api = config.api_config_source if config is not None else None
    for service in api.grpc_services if api is not None else ():
        if service.envoy_grpc is not None:
            return service, str(service.envoy_grpc.cluster_name)
    return None, ""


def _asks_the_service(view: View, pool: Cluster) -> bool:
    return _service(pool)[1] in {service.name for service in view.services}


@rule(
    "eds-elsewhere",
    WARNING,
    why="Only from the service does Envoy hear which servers it knows, and which of them drain or are unhealthy; a pick"
    " that names a host which Envoy was not told of goes by the fallback policy.",
    cure="let eds_config ask the service's cluster, as in the shipped envoy-eds.yaml",
)
def eds_elsewhere(view: View, say: Say) -> Iterator[Finding]:
    for pool in _eds(view):
        config, (service, name) = _config(pool), _service(pool)
        if config is None:
            yield say(pool.node, "is not set", _FIELD)
        elif config.ads is not None:
            yield say(pool.node, "asks over ADS, which the service does not serve", f"{_FIELD}.ads")
        elif service is None:
            yield say(pool.node, "does not ask the service", _FIELD)
        elif name in view.clusters and not _asks_the_service(view, pool):
            yield say(pool.node, f"asks cluster {name}, which is not the service's", f"{_FIELD}.api_config_source")


@rule(
    "eds-cluster-undefined",
    ERROR,
    why="Envoy refuses a file whose EDS cluster asks a cluster that there is not.",
    cure="name the service's cluster",
)
def eds_cluster_undefined(view: View, say: Say) -> Iterator[Finding]:
    for pool in _eds(view):
        service, name = _service(pool)
        if service is not None and name not in view.clusters:
            cure = suggest(name, [service.name for service in view.services])
            yield say(pool.node, f'there is no cluster "{name}"', f"{_FIELD}.api_config_source.grpc_services", cure)


@rule(
    "eds-protocol",
    ERROR,
    why="The service answers the state-of-the-world protocol over gRPC; by another Envoy hears of no server.",
    cure="set api_type: GRPC",
)
def eds_protocol(view: View, say: Say) -> Iterator[Finding]:
    for pool in _eds(view):
        if _asks_the_service(view, pool):
            kind = _config(pool).api_config_source.api_type.name
            if kind != "GRPC":
                yield say(pool.node, f"is {kind}", f"{_FIELD}.api_config_source.api_type")


@rule(
    "eds-fetch-timeout",
    WARNING,
    why="While it waits for its first endpoints Envoy does not open its ports; 0 is for ever, so that without the"
    " service no Envoy starts.",
    cure="set initial_fetch_timeout: 15s",
)
def eds_fetch_timeout(view: View, say: Say) -> Iterator[Finding]:
    for pool in _eds(view):
        config = _config(pool)
        timeout = config.initial_fetch_timeout if config is not None else None
        if timeout is not None and not timeout.total_seconds():
            yield say(pool.node, "waits for ever", f"{_FIELD}.initial_fetch_timeout")


@rule(
    "eds-reconnect-slow",
    WARNING,
    why="After the service was away Envoy waits ever longer between calls, up to 30 s unless set; until it calls again"
    " it knows of no new server and of none that has left.",
    cure="set envoy_grpc.retry_policy: {retry_back_off: {base_interval: 0.25s, max_interval: 2s}}",
)
def eds_reconnect_slow(view: View, say: Say) -> Iterator[Finding]:
    for pool in _eds(view):
        service, _ = _service(pool)
        if service is None or not _asks_the_service(view, pool):
            continue
        policy = service.envoy_grpc.retry_policy
        longest_s = _longest_s(policy.retry_back_off if policy is not None else None)
        if longest_s > SOON_S:
            field = f"{_FIELD}.api_config_source.grpc_services"
            yield say(pool.node, f"calls the service again only after up to {longest_s:g} s", field)


def _longest_s(back_off: Any) -> float:
    if back_off is None:
        return _BACK_OFF_MAX_S
    base, longest = (_seconds(value) for value in (back_off.base_interval, back_off.max_interval))
    if longest is not None:
        return longest
    return _MAX_PER_BASE * (base if base is not None else _BACK_OFF_BASE_S)


def _seconds(value: timedelta | None) -> float | None:
    return value.total_seconds() if value is not None else None


@rule(
    "eds-removal-waits",
    WARNING,
    why="With health_checks a server that left the endpoints stays until its /health fails, and gets requests without a"
    " pick till then.",
    cure="set ignore_health_on_host_removal: true; what streams there goes on",
)
def eds_removal_waits(view: View, say: Say) -> Iterator[Finding]:
    for pool in _eds(view):
        if pool.message.health_checks and not pool.message.ignore_health_on_host_removal:
            yield say(pool.node, "is not set beside health_checks", "ignore_health_on_host_removal")


@rule(
    "eds-load-assignment",
    WARNING,
    why="A cluster of type EDS gets its endpoints from eds_config alone.",
    cure="remove it; list them under node.metadata.extproc.pools, or set discovery there",
)
def eds_load_assignment(view: View, say: Say) -> Iterator[Finding]:
    for pool in _eds(view):
        if pool.node.get("load_assignment") is not None:
            yield say(pool.node, "has no effect", "load_assignment")
