"""Which endpoints are these pods, or these slices?

A pod is one server for each of its ports, by one address: of a pod with two families only the preferred one counts, or
its load would be taken for that of two. Of two pods at one address (host network, an IP given anew while an old slice
still tells of the one before) it is the one that is not leaving.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from pydantic import ValidationError

from extproc.config.problems import suggest
from extproc.config.settings import EndpointSettings
from extproc.discovery.kubernetes.objects import ANNOTATIONS, Pod, Slice
from extproc.discovery.source import EndpointSet, to_endpoint
from extproc.endpoint import Address, Endpoint

Port = int | str  # a number, or the name of one
_OPTIONS = {"weight": "weight", "model": "model", "metrics-port": "metrics_port", "drained": "drained"}
_PLAIN = EndpointSettings(address="0.0.0.0:1")  # its options are the defaults


@dataclass(frozen=True, slots=True)
class Members:
    """`problems` are for the log, each once: what was left out, and why."""

    endpoints: EndpointSet  # by address
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    endpoint: Endpoint
    rank: tuple[bool, bool, str, str]  # the highest of an address wins: stays, ready, younger, by name


def of_pods(pods: Collection[Pod], ports: tuple[Port, ...], family: str) -> Members:
    """`family` as in the settings. A pod that is not ready is a member: it may still serve, and is looked at anyway."""
    problems: list[str] = []
    found: list[_Found] = []
    for pod in pods:
        if pod.ended or not pod.ips:
            continue
        options = _options(pod, one_port=len(ports) == 1, problems=problems)
        ip = _preferred(pod.ips, family)
        if ip is None:
            problems.append(f"pod {pod.name}: none of its addresses ({', '.join(pod.ips)}) is of family {family}")
            continue
        for port in ports:
            number = port if isinstance(port, int) else dict(pod.ports).get(port)
            if number is None:
                problems.append(f'pod {pod.name}: no container has a port named "{port}"{_named(pod.ports)}')
                continue
            address = _address(ip, number, f"pod {pod.name}", problems)
            if address is not None:
                endpoint = replace(to_endpoint(options, address), uid=pod.uid, leaving=pod.leaving)
                found.append(_Found(endpoint, (not pod.leaving, pod.ready, pod.created, pod.name)))
    return Members(_one_of_each(found), tuple(problems))


def of_slices(slices: Collection[Slice], ports: tuple[Port, ...], family: str) -> Members:
    """No `ports`: the Service has one."""
    problems: list[str] = []
    rows = list(_rows(slices, ports, problems))
    # One pod, one address. Several slices may tell of a pod, not all of them of late: a deletion is never taken back.
    leaving = {endpoint.uid for endpoint, _, _ in rows if endpoint.uid and endpoint.leaving}
    ips: dict[str | None, list[str]] = {}
    for endpoint, _, _ in rows:
        ips.setdefault(endpoint.uid, []).append(endpoint.address.ip)
    found: list[_Found] = []
    for endpoint, ready, name in rows:
        known = ips[endpoint.uid] if endpoint.uid else [endpoint.address.ip]
        if _preferred(known, family) != endpoint.address.ip:
            continue
        leaves = endpoint.leaving or endpoint.uid in leaving
        found.append(_Found(replace(endpoint, leaving=leaves), (not leaves, ready, "", name)))
    return Members(_one_of_each(found), tuple(problems))


def _rows(
    slices: Iterable[Slice], ports: tuple[Port, ...], problems: list[str]
) -> Iterator[tuple[Endpoint, bool, str]]:
    """Every endpoint of every slice, whether it is ready, and the slice's name; the same address may come again."""
    for slice_ in sorted(slices, key=lambda slice_: slice_.name):
        if not slice_.endpoints:
            continue
        if slice_.kind == "FQDN":
            problems.append(f"slice {slice_.name}: its addresses are DNS names, which are not followed")
            continue
        for port in _ports(slice_, ports, problems):
            for entry in slice_.endpoints:
                address = _address(entry.ip, port, f"slice {slice_.name}", problems)
                if address is not None:
                    yield Endpoint(address, uid=entry.uid, leaving=entry.leaving), entry.ready, slice_.name


def _ports(slice_: Slice, ports: tuple[Port, ...], problems: list[str]) -> list[int]:
    if not ports:
        if len(slice_.ports) == 1:
            return [slice_.ports[0][1]]
        has = "no TCP port" if not slice_.ports else "several ports"
        problems.append(f"slice {slice_.name}: the service has {has}{_named(slice_.ports)}; name one as `port`")
        return []
    numbers: list[int] = []
    for port in ports:
        number = port if isinstance(port, int) else dict(slice_.ports).get(port)
        if number is not None:
            numbers.append(number)
        else:
            problems.append(f'slice {slice_.name}: the service has no port named "{port}"{_named(slice_.ports)}')
    return numbers


def _named(ports: tuple[tuple[str, int], ...]) -> str:
    return " (there: " + ", ".join(f"{name or 'unnamed'} {number}" for name, number in ports) + ")" if ports else ""


def _preferred(ips: Collection[str], family: str) -> str | None:
    """The first address of the family; None: it has none, and another is not wanted."""
    wanted = [ip for ip in ips if (":" in ip) == family.startswith("v6")]
    if wanted:
        return wanted[0]
    return None if family.endswith("_only") else next(iter(ips), None)


def _address(ip: str, port: int, of: str, problems: list[str]) -> Address | None:
    try:
        return Address.of(ip, port)
    except ValueError as error:
        problems.append(f"{of}: {error}")
        return None


def _one_of_each(found: Iterable[_Found]) -> EndpointSet:
    best: dict[Address, _Found] = {}
    for each in found:
        held = best.get(each.endpoint.address)
        if held is None or each.rank > held.rank:
            best[each.endpoint.address] = each
    return tuple(best[address].endpoint for address in sorted(best))


def _options(pod: Pod, *, one_port: bool, problems: list[str]) -> EndpointSettings:
    """What its annotations say. A bad one counts as not there: a slip of the pen must not take a server out."""
    options = _PLAIN
    for key, text in pod.options:
        name = f"pod {pod.name}: annotation {ANNOTATIONS}{key}"
        field = _OPTIONS.get(key)
        if field is None:
            problems.append(f"{name} is unknown; {suggest(key, _OPTIONS)}")
        elif field == "metrics_port" and not one_port:
            problems.append(f"{name} does not count: each of the pod's several ports has its own metrics")
        else:
            try:
                checked = EndpointSettings.model_validate({"address": _PLAIN.address, field: text})
            except ValidationError as error:
                reason = error.errors()[0]["msg"]
                problems.append(f'{name}: "{text}" does not count: {reason[:1].lower()}{reason[1:]}')
            else:
                options = options.model_copy(update={field: getattr(checked, field)})
    return options
