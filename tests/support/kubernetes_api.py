"""A small Kubernetes API: lists in pages, watches with bookmarks, and the ways in which both fail."""

from __future__ import annotations

import asyncio
import copy
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

Item = dict[str, Any]

NAMESPACE = "llm"


def matches(item: Item, labels: str, fields: str) -> bool:
    """`a=b,c=d` of labels, and metadata.name of fields; the API knows more, the source sends no more."""
    has = item["metadata"].get("labels", {})
    wanted = [pair.split("=", 1) for pair in labels.split(",") if pair]
    name = fields.partition("metadata.name=")[2]
    return all(has.get(key) == value for key, value in wanted) and name in ("", item["metadata"]["name"])


@dataclass
class Asked:
    verb: str
    plural: str
    path: str
    query: dict[str, str]
    token: str


@dataclass
class KubernetesApi:
    """Change the fields below while it runs."""

    objects: dict[str, dict[str, Item]] = field(default_factory=dict)  # plural -> name -> object
    token: str | None = None  # another one is answered 401
    forbidden: set[tuple[str, str]] = field(default_factory=set)  # (verb, plural)
    unknown: set[str] = field(default_factory=set)  # plurals that it does not serve
    answer: tuple[int, dict[str, str]] | None = None  # status and headers of every answer
    body: bytes | None = None  # in place of every list
    slow_s: float = 0.0
    pages_expire: bool = False  # 410 for every `continue`
    gone_status: bool = False  # 410 as the answer to a watch
    gone_event: bool = False  # 410 as the first event of a watch
    loses_events: bool = False
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    version: int = 1000
    _history: list[tuple[int, str, Item | None, Item | None]] = field(default_factory=list)
    _watches: dict[asyncio.Queue[tuple[str, Item] | bytes | None], tuple[str, str, str]] = field(default_factory=dict)

    def put(self, plural: str, item: Item) -> None:
        """Create or replace."""
        name = item["metadata"]["name"]
        self.version += 1
        item = copy.deepcopy(item)
        item["metadata"]["resourceVersion"] = str(self.version)
        before = self.objects.setdefault(plural, {}).get(name)
        self.objects[plural][name] = item
        self._tell(plural, before, item)

    def delete(self, plural: str, name: str) -> None:
        self.version += 1
        self._tell(plural, self.objects[plural].pop(name), None)

    def _tell(self, plural: str, before: Item | None, now: Item | None) -> None:
        if self.loses_events:
            return
        self._history.append((self.version, plural, before, now))
        for queue, (of, labels, fields) in self._watches.items():
            if of == plural and (event := _event(before, now, labels, fields)):
                queue.put_nowait(event)

    def bookmark(self) -> None:
        """Send one on every watch that allows it."""
        self.version += 1
        for queue in self._watches:
            queue.put_nowait(("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}}))

    def say(self, raw: bytes) -> None:
        for queue in self._watches:
            queue.put_nowait(raw)

    def cut(self) -> None:
        """Break all watches off, without an end."""
        for queue in self._watches:
            queue.put_nowait(None)

    @property
    def watches(self) -> int:
        return len(self._watches)

    def count(self, verb: str, plural: str) -> int:
        """Requests so far; of a list in pages, the first."""
        return sum(
            asked.verb == verb and asked.plural == plural and "continue" not in asked.query for asked in self.asked
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        plural, query = request.match_info["plural"], dict(request.query)
        verb = "watch" if query.get("watch") == "true" else "list"
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.asked.append(Asked(verb, plural, request.path, query, token))
        if self.slow_s:
            await asyncio.sleep(self.slow_s)
        if self.answer is not None:
            return _status(self.answer[0], "the test wants it so", self.answer[1])
        if self.token is not None and token != self.token:
            return _status(401, "Unauthorized")
        if plural in self.unknown:
            return _status(404, "the server could not find the requested resource")
        if (verb, plural) in self.forbidden:
            return _status(403, f'{plural} is forbidden: User "test" cannot {verb} resource "{plural}"')
        return await (self._watch if verb == "watch" else self._list)(request, plural, query)

    async def _list(self, request: web.Request, plural: str, query: dict[str, str]) -> web.StreamResponse:
        if self.body is not None:
            return web.Response(body=self.body, content_type="application/json")
        if self.pages_expire and "continue" in query:
            return _status(410, "The provided continue parameter is too old")
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        found = [item for item in self.objects.get(plural, {}).values() if matches(item, labels, fields)]
        start, limit = int(query.get("continue", 0)), int(query.get("limit", len(found) or 1))
        meta = {"resourceVersion": str(self.version)}
        if start + limit < len(found):
            meta["continue"] = str(start + limit)
        return web.json_response({"kind": "List", "metadata": meta, "items": found[start : start + limit]})

    async def _watch(self, request: web.Request, plural: str, query: dict[str, str]) -> web.StreamResponse:
        if self.gone_status:
            return _status(410, "too old resource version: 1 (2)")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        queue: asyncio.Queue[tuple[str, Item] | bytes | None] = asyncio.Queue()
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        for version, of, before, now in self._history:
            newer = version > int(query["resourceVersion"]) and of == plural
            if newer and (event := _event(before, now, labels, fields)):
                queue.put_nowait(event)
        self._watches[queue] = plural, labels, fields
        try:
            await response.prepare(request)
            if self.gone_event:
                gone = {"kind": "Status", "message": "too old resource version", "reason": "Expired", "code": 410}
                await response.write(_line("ERROR", gone))
                return response
            async with asyncio.timeout(int(query["timeoutSeconds"])):
                while True:
                    event = await queue.get()
                    if event is None:
                        assert request.transport is not None
                        request.transport.abort()
                        return response
                    await response.write(event if isinstance(event, bytes) else _line(*event))
        except TimeoutError:
            await response.write_eof()
        finally:
            del self._watches[queue]
        return response

    def kubeconfig(self, folder: Path, **user: str) -> Path:
        """For `user`, as in {"token": "x"} or {"tokenFile": "path"}."""
        path = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "fake", "user": "me", "namespace": NAMESPACE}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path


@asynccontextmanager
async def kubernetes_api(tls: ssl.SSLContext | None = None) -> AsyncIterator[KubernetesApi]:
    """One on loopback; `url` tells where."""
    api = KubernetesApi()
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/{namespace}/{plural}", api.handle)
    app.router.add_get("/apis/{group}/{version}/namespaces/{namespace}/{plural}", api.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        api.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        yield api
    finally:
        await runner.cleanup()


def pod(name: str, ip: str | None, *, uid: str = "", labels: str = "app=vllm", **meta: Any) -> Item:
    """As the API gives it, with fields that are not looked at."""
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid or f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": dict(pair.split("=") for pair in labels.split(",")),
            "managedFields": [{"manager": "kubelet"}],
            **meta,
        },
        "spec": {"containers": [{"name": "vllm", "ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            **({"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {}),
        },
    }


def slice_of(service: str, name: str, *endpoints: Item, ports: list[Item] | None = None, kind: str = "IPv4") -> Item:
    labels = {"kubernetes.io/service-name": service}
    return {
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "addressType": kind,
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}] if ports is None else ports,
        "endpoints": list(endpoints),
    }


def slice_endpoint(ip: str, uid: str | None = None, **conditions: bool) -> Item:
    found: Item = {
        "addresses": [ip],
        "conditions": {"ready": True, "serving": True, "terminating": False, **conditions},
    }
    if uid is not None:
        found["targetRef"] = {"kind": "Pod", "name": f"pod-of-{uid}", "namespace": NAMESPACE, "uid": uid}
    return found


def inference_pool(name: str, labels: dict[str, str], *ports: int) -> Item:
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "targetPorts": [{"number": number} for number in ports],
            "endpointPickerRef": {"name": "extproc", "port": {"number": 9002}},
        },
    }


def _event(before: Item | None, now: Item | None, labels: str, fields: str) -> tuple[str, Item] | None:
    """What a watch of these is told; an object that does not match any more is deleted, to it."""
    was = before is not None and matches(before, labels, fields)
    if now is not None and matches(now, labels, fields):
        return ("MODIFIED" if was else "ADDED"), now
    return ("DELETED", now or before or {}) if was else None


def _line(kind: str, item: Item) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def _status(code: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "message": message, "code": code}
    return web.json_response(body, status=code, headers=headers)
