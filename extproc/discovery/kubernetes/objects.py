"""What do we keep of a pod, an EndpointSlice, an InferencePool?

A pod's JSON is tens of kilobytes, of which a few fields matter here. Reading never fails: the API server has validated
the objects, and where a field is missing or odd all the same, it is as if it were not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

Json = Mapping[str, Any]

ANNOTATIONS = "extproc/"  # the prefix of ours


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    uid: str | None
    ips: tuple[str, ...]  # the primary one first; empty before it has one
    leaving: bool  # it has a deletion timestamp
    ended: bool  # all its containers have, for good: its IP may be another pod's by now
    ready: bool
    created: str  # RFC 3339, in UTC: they sort as text
    ports: tuple[tuple[str, int], ...]  # the named ones of its containers
    options: tuple[tuple[str, str], ...]  # our annotations, without the prefix

    @classmethod
    def of(cls, item: Json) -> Self:
        meta, spec, status = _object(item.get("metadata")), _object(item.get("spec")), _object(item.get("status"))
        ips = [_text(_object(entry).get("ip")) for entry in _list(status.get("podIPs"))] or [_text(status.get("podIP"))]
        # A sidecar is an init container that goes on.
        containers = [*_list(spec.get("containers")), *_list(spec.get("initContainers"))]
        named = [
            (name, number)
            for container in containers
            for port in _list(_object(container).get("ports"))
            if (name := _text(_object(port).get("name"))) and (number := _number(_object(port).get("containerPort")))
        ]
        return cls(
            name=_text(meta.get("name")),
            uid=_text(meta.get("uid")) or None,
            ips=tuple(ip for ip in ips if ip),
            leaving=bool(meta.get("deletionTimestamp")),
            ended=status.get("phase") in ("Succeeded", "Failed"),
            ready=any(
                _object(condition).get("type") == "Ready" and _object(condition).get("status") == "True"
                for condition in _list(status.get("conditions"))
            ),
            created=_text(meta.get("creationTimestamp")),
            ports=tuple(named),
            options=tuple(
                (key.removeprefix(ANNOTATIONS), value)
                for key, value in _object(meta.get("annotations")).items()
                if isinstance(key, str) and key.startswith(ANNOTATIONS) and isinstance(value, str)
            ),
        )


@dataclass(frozen=True, slots=True)
class SliceEndpoint:
    ip: str
    uid: str | None  # of the pod; None: the slice does not refer to one
    leaving: bool
    ready: bool


@dataclass(frozen=True, slots=True)
class Slice:
    """An EndpointSlice. Its addresses are IPs, or names when `kind` is FQDN."""

    name: str
    kind: str  # IPv4, IPv6, FQDN
    ports: tuple[tuple[str, int], ...]  # the TCP ones; the name of an unnamed port is ""
    endpoints: tuple[SliceEndpoint, ...]

    @classmethod
    def of(cls, item: Json) -> Self:
        return cls(
            name=_text(_object(item.get("metadata")).get("name")),
            kind=_text(item.get("addressType")),
            ports=tuple(
                (_text(_object(port).get("name")), number)
                for port in _list(item.get("ports"))
                if _object(port).get("protocol") in (None, "TCP") and (number := _number(_object(port).get("port")))
            ),
            endpoints=tuple(
                endpoint for entry in _list(item.get("endpoints")) if (endpoint := _slice_endpoint(_object(entry)))
            ),
        )


def _slice_endpoint(entry: Json) -> SliceEndpoint | None:
    addresses = [ip for ip in map(_text, _list(entry.get("addresses"))) if ip]
    if not addresses:
        return None
    conditions = _object(entry.get("conditions"))
    return SliceEndpoint(
        ip=addresses[0],  # the API says: if there are several they are alike, and clients use the first
        uid=_text(_object(entry.get("targetRef")).get("uid")) or None,
        # Not looked at: `ready` and `serving`. A Service that publishes not-ready addresses says `ready` of all.
        leaving=conditions.get("terminating") is True,
        ready=conditions.get("ready") is not False,
    )


@dataclass(frozen=True, slots=True)
class InferencePool:
    name: str
    selector: str  # for the API; empty: none is given, which would mean every pod of the namespace
    ports: tuple[int, ...]

    @classmethod
    def of(cls, item: Json) -> Self:
        spec = _object(item.get("spec"))
        labels = _object(_object(spec.get("selector")).get("matchLabels"))
        numbers = (_number(_object(port).get("number")) for port in _list(spec.get("targetPorts")))
        return cls(
            name=_text(_object(item.get("metadata")).get("name")),
            selector=",".join(f"{key}={value}" for key, value in sorted(labels.items(), key=str)),
            ports=tuple(dict.fromkeys(number for number in numbers if number)),
        )


def name_of(item: Json) -> str:
    """Within one namespace and kind, what tells an object from all others."""
    return _text(_object(item.get("metadata")).get("name"))


def _object(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    """A port."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535 else None
