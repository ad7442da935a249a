"""Does a route leave the filters as its requests need them, and does it name a pool and a profile that there are?"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.config.codes import Finding
from extproc.config.per_route import Way
from extproc.config.problems import suggest
from extproc.config.rules.rule import ERROR, WARNING, Say, rule
from extproc.config.settings import Settings
from extproc.config.tree import Node
from extproc.config.view import (
    BUFFER,
    POOL_METADATA,
    PROFILE_METADATA,
    Chain,
    Extension,
    Route,
    Shape,
    View,
    shape_of,
)
from extproc.scheduling.profiles import PROFILES

_OURS = "x-extproc-"


def _ways(view: View) -> Iterator[tuple[Chain, Route, Way, Extension]]:
    """Each way to a pool, and the ext_proc filter on it."""
    for chain in view.chains:
        for _, processor in chain.processors[:1]:
            for route in chain.routes:
                for way in route.ways:
                    yield chain, route, way, processor


def _shape(way: Way, processor: Extension) -> Shape | None:
    """How requests on the way reach the service; None: ext_proc is off."""
    if way.off(processor.name, processor.node) is not None:
        return None
    override = way.mode(processor.name)
    return shape_of(processor.message if override is None else override.overrides)


def _metadata(way: Way, processor: Extension) -> dict[str, tuple[str, Node]]:
    """What the service is told with the streams of the way; nothing where there are none."""
    if _shape(way, processor) in (None, Shape.NOTHING):
        return {}
    return way.metadata(processor.name, processor.message, processor.config)


@rule(
    "route-ext-proc-off",
    ERROR,
    why="Requests with a prompt go there by the fallback policy, without a pick, and no load that they make is known"
    " before the next scrape.",
    cure="switch it on there; routes for upgrades, and for paths without a prompt, may have it off",
)
def route_ext_proc_off(view: View, say: Say) -> Iterator[Finding]:
    for _, route, way, processor in _ways(view):
        off = way.off(processor.name, processor.node)
        if off is not None and route.calls:
            yield say(off, f"is off for {_what(route, way)}")
        override = way.mode(processor.name)
        if override is not None and route.calls and _shape(way, processor) is Shape.NOTHING:
            yield say(override.body, f"sends nothing of {_what(route, way)}", "overrides.processing_mode")


def _what(route: Route, way: Way) -> str:
    return f"{route.calls[0]}, which goes to pool {way.pool}"


@rule(
    "route-buffer-off",
    ERROR,
    why="In shape A the buffer filter holds the headers back until the pick is known; without it the router chooses"
    " before, and the pick is counted and not followed.",
    cure="switch it on there, or switch ext_proc off as well",
)
def route_buffer_off(view: View, say: Say) -> Iterator[Finding]:
    for chain, route, way, processor in _ways(view):
        if not route.calls or _shape(way, processor) is not Shape.BODY_FIRST:
            continue
        first = chain.processors[0][0]
        places = [way.off(found.name, found.node) for index, found in chain.of_type(BUFFER) if index > first]
        if places and places[-1] is not None and None not in places:
            yield say(places[-1], f"is off for {_what(route, way)}")


@rule(
    "route-body-not-sent",
    WARNING,
    why="A processing mode on a route replaces the filter's as a whole, and unset the body is not sent: choice there is"
    " by load alone.",
    cure="write the whole processing_mode, with request_body_mode, or leave it out",
)
def route_body_not_sent(view: View, say: Say) -> Iterator[Finding]:
    for _, route, way, processor in _ways(view):
        override = way.mode(processor.name)
        if override is None or not route.calls or shape_of(processor.message) is Shape.HEADERS_ONLY:
            continue
        if _shape(way, processor) is Shape.HEADERS_ONLY:
            yield say(override.body, f"sends no body of {_what(route, way)}", "overrides.processing_mode")


@rule(
    "route-profile",
    ERROR,
    why="The service ignores the name of a profile that it does not have, and the pool's own decides.",
    cure="name a profile",
)
def route_profile(view: View, say: Say) -> Iterator[Finding]:
    for name, place in _named(view, PROFILE_METADATA):
        if name not in PROFILES:
            yield say(place, f'there is no profile "{name}"', "value", suggest(name, PROFILES))


def _named(view: View, key: str) -> Iterator[tuple[str, Node]]:
    for _, _, way, processor in _ways(view):
        found = _metadata(way, processor).get(key)
        if found is not None and "%" not in found[0]:  # Envoy puts something of the request in the place of %...%
            yield found


@rule(
    "route-pool",
    ERROR,
    why="The service picks from the pool that the route's gRPC metadata names, or else from default_pool; hosts of"
    " another pool are not in the route's cluster, and its fallback policy serves.",
    cure="name the pool of the route's cluster",
)
def route_pool(view: View, say: Say) -> Iterator[Finding]:
    settings = view.settings
    if settings is None:
        return
    for _, route, way, processor in _ways(view):
        if _shape(way, processor) in (None, Shape.NOTHING):
            continue
        named = _metadata(way, processor).get(POOL_METADATA)
        if named is None:
            default = settings.default_pool or next(iter(settings.pools), None)
            if default is not None and not _same_servers(settings, way.pool, default):
                yield say(
                    route.node,
                    f"leads to pool {way.pool} and names none, so the service picks from the default pool {default}",
                    "typed_per_filter_config",
                    f"add {{key: {POOL_METADATA}, value: {way.pool}}} to ext_proc's overrides.grpc_initial_metadata",
                )
            continue
        name, place = named
        if "%" in name:
            continue
        if name not in settings.pools:
            yield say(place, f'there is no pool "{name}"', "value", suggest(name, settings.pools))
        elif not _same_servers(settings, way.pool, name):
            yield say(place, f'names pool "{name}", and the route leads to cluster {way.pool}', "value")


def _same_servers(settings: Settings, cluster: str, pool: str) -> bool:
    """A second cluster of the same servers, with other limits, is no mistake."""
    if cluster == pool:
        return True
    found = [
        {endpoint.address for endpoint in settings.pools[name].endpoints} if name in settings.pools else set()
        for name in (cluster, pool)
    ]
    return found[0] == found[1] != set()


@rule(
    "route-metadata-key",
    WARNING,
    why="The service reads two keys of the stream's metadata, and passes over others without a word.",
    cure=f"use {POOL_METADATA} or {PROFILE_METADATA}",
)
def route_metadata_key(view: View, say: Say) -> Iterator[Finding]:
    known = (POOL_METADATA, PROFILE_METADATA)
    for _, _, way, processor in _ways(view):
        for key, (_, place) in _metadata(way, processor).items():
            if key.startswith(_OURS) and key not in known:
                yield say(place, f'"{key}" means nothing', "key", suggest(key, known))
