"""What does a simulated vLLM server answer?

The paths and JSON shapes of vLLM's OpenAI server, with faults where they are switched on. Every answer carries
`x-vllm-sim: NAME`, so that a test can tell who served.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

from aiohttp import web

from extproc.sim.answering import AnswerOptions, Exchange, StreamResetError, StreamSilencedError
from extproc.sim.driver import EngineDriver
from extproc.sim.engine import Engine
from extproc.sim.faults import Faults
from extproc.sim.metrics_page import CONTENT_TYPE, MetricsPage, Readings
from extproc.sim.request_log import RequestLog
from extproc.sim.spec import EngineSpec
from extproc.sim.text import count_tokens, render_chat, render_prompt
from extproc.sim.wire import SHUT_DOWN, ApiError, Kind, parse_ask, rendered

VERSION = "0.32.0"  # the release whose behaviour was recorded
_INFERENCE: dict[str, Kind] = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}
_RECORD_LIMIT = 100_000  # requests kept, the oldest go first
_RENDER: dict[str, Kind] = {"/v1/chat/completions/render": "chat", "/v1/completions/render": "completion"}
_SECRET_HEADERS = frozenset({"authorization", "cookie", "x-api-key"})


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request as it arrived."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]  # names as sent, in order; values of credentials are left out
    body_bytes: int
    body_sha256: str


@dataclass(slots=True)
class Ledger:
    """What arrived at one address, over all lives of its server. Numbers count inference requests."""

    seen: int = 0
    answered: int = 0  # to the end, errors included
    aborted: int = 0  # given up by the client, or cut
    requests: list[SeenRequest] = field(default_factory=list)  # of any path; only if the server records

    @property
    def in_flight(self) -> int:
        """Requests that have no end yet."""
        return self.seen - self.answered - self.aborted


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server presents its engine."""

    models: tuple[str, ...] = ("sim",)  # names it answers to; the first is the one on the metrics page
    adapters: tuple[str, ...] = ()  # LoRA adapters loaded from the start
    answers: AnswerOptions = field(default_factory=AnswerOptions)
    max_queued_requests: int | None = None  # more waiting ones are refused with 503; None: no limit
    record: bool = False  # keep what arrives
    request_log: RequestLog | None = None  # write down what arrives and ends
    render: bool = False  # answer render calls (the prompt as token ids); vLLM 0.32 as it comes refuses them: 403


class SimApi:
    """One life of a server: an engine, and the answers it gives. Belongs to the running event loop."""

    def __init__(
        self, name: str, spec: EngineSpec, options: ServerOptions, faults: Faults, ledger: Ledger, *, seed: int
    ) -> None:
        self.spec = spec
        self.options = options
        self.ledger = ledger
        self.faults = faults
        self.draining = False  # told to stop: new requests get vLLM's 500
        self._loop = asyncio.get_running_loop()
        self.started_unix_s = time.time()
        self.engine = Engine(spec, self._loop.time(), seed=seed)
        self.driver = EngineDriver(self.engine, self._loop)
        self._rng = random.Random(seed)
        self._cold_until_s = self._loop.time() + faults.cold_start_s
        self._page = MetricsPage(options.models[0], spec)
        self._frozen_page: bytes | None = None
        self._name = name
        self._adapters = dict.fromkeys(options.adapters)  # in the order they were loaded
        self._headers = {"x-vllm-sim": name, "server": "uvicorn"}
        self._answer_number = 0
        self._rejected = 0
        self._http_requests: Counter[tuple[str, str, str]] = Counter()
        self._routes: dict[tuple[str, str], Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._list_models,
            ("GET", "/version"): self._version,
            ("GET", "/load"): self._load,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/v1/load_lora_adapter"): self._load_adapter,
            ("POST", "/v1/unload_lora_adapter"): self._unload_adapter,
            ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
            ("GET", "/sim/faults"): self._get_faults,
            ("POST", "/sim/faults"): self._post_faults,
            ("GET", "/sim/requests"): self._get_requests,
        }
        for path in _INFERENCE:
            self._routes["POST", path] = self._infer
        for path in _RENDER:
            self._routes["POST", path] = self._render
        self._apply_faults()

    def set_faults(self, **values: Any) -> None:
        """Set some switches. Raises ValueError as `Faults.changed` does."""
        before, self.faults = self.faults, self.faults.changed(values)
        if "cold_start_s" in values:
            self._cold_until_s = self._loop.time() + self.faults.cold_start_s
        if before.metrics != self.faults.metrics:
            self._frozen_page = None
        self._apply_faults()

    def _apply_faults(self) -> None:
        self.engine.slow_factor = self.faults.slow_factor
        if self.faults.metrics == "frozen" and self._frozen_page is None:
            self._frozen_page = self._render_metrics()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request. Cancelled when its client goes."""
        path = request.path
        inference = path in _INFERENCE and request.method == "POST"
        request_log = self.options.request_log if inference else None
        if inference:
            self.ledger.seen += 1
        if request_log is not None:
            request_log.arrived(self._name, request.headers.get("x-request-id"))
        answered, status = False, None
        try:
            response = await self._respond(request, path)
            answered, status = True, response.status
        except ConnectionError:  # written to a client that has gone, before the loss could cancel this
            return web.Response()  # nobody reads it
        finally:
            if inference:
                if answered:
                    self.ledger.answered += 1
                else:
                    self.ledger.aborted += 1
            if request_log is not None:
                request_log.ended(self._name, request.headers.get("x-request-id"), status)
        self._http_requests[path if inference else "none", request.method, f"{response.status // 100}xx"] += 1
        return response

    async def _respond(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        if self.options.record and not path.startswith("/sim/"):
            self._note(request, await request.read())
        try:
            if self._loop.time() < self._cold_until_s and not path.startswith("/sim/"):
                raise ApiError(503, "The server is starting")
            if request.method == "OPTIONS":
                return self._answer(b"", headers={"access-control-allow-origin": "*", "allow": "GET, POST, OPTIONS"})
            route = self._routes.get((request.method, path))
            if route is not None:
                return await route(request)
            allowed = any(known == path for _, known in self._routes)
            detail = b'{"detail":"Method Not Allowed"}' if allowed else b'{"detail":"Not Found"}'
            return self._answer(detail, status=405 if allowed else 404)
        except ApiError as error:
            headers = {}
            if error.status in (429, 503) and self.faults.retry_after_s is not None:
                headers["retry-after"] = str(self.faults.retry_after_s)
            return self._answer(error.body, status=error.status, headers=headers)

    def _answer(
        self,
        body: bytes,
        *,
        status: int = 200,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> web.Response:
        all_headers = {**self._headers, "content-type": content_type, **(headers or {})}
        return web.Response(body=body, status=status, headers=all_headers)

    def _json(self, value: object, status: int = 200) -> web.Response:
        return self._answer(json.dumps(value).encode(), status=status)

    def _note(self, request: web.BaseRequest, body: bytes) -> None:
        headers = tuple(
            (
                name.decode("latin-1"),
                "" if name.decode("latin-1").lower() in _SECRET_HEADERS else value.decode("latin-1"),
            )
            for name, value in request.raw_headers
        )
        digest = sha256(body).hexdigest()
        if len(self.ledger.requests) >= _RECORD_LIMIT:
            del self.ledger.requests[: _RECORD_LIMIT // 10]
        self.ledger.requests.append(SeenRequest(request.method, request.path_qs, headers, len(body), digest))

    async def _infer(self, request: web.BaseRequest) -> web.StreamResponse:
        faults = self.faults
        raw = await request.read()
        if faults.reset_ratio and self._rng.random() < faults.reset_ratio:
            return await self._reset(request)
        if faults.hang_ratio and self._rng.random() < faults.hang_ratio:
            await self._never()
        if faults.error_status is not None and self._rng.random() < faults.error_ratio:
            raise ApiError(faults.error_status, f"the fault error_status = {faults.error_status} is set")
        if self.draining:
            raise ApiError(500, SHUT_DOWN)
        ask = parse_ask(_INFERENCE[request.path], raw, self.options.models[0])
        if ask.model not in self.options.models and ask.model not in self._adapters:
            raise ApiError(404, f"The model `{ask.model}` does not exist.", param="model")
        if self.options.max_queued_requests is not None:
            self.driver.refresh()
            if self.engine.waiting >= self.options.max_queued_requests:
                self._rejected += 1
                raise ApiError(503, f"The queue is full: {self.engine.waiting} requests are waiting")
        self._answer_number += 1
        answer_id = f"{'chatcmpl' if ask.kind == 'chat' else 'cmpl'}-{self._name}-{self._answer_number}"
        exchange = Exchange(ask, answer_id, self.driver, self.options.answers)
        exchange.submit()
        try:
            if not ask.stream:
                return self._answer(await exchange.full())
            response = web.StreamResponse(headers={**self._headers, "content-type": "text/event-stream; charset=utf-8"})
            await response.prepare(request)  # sends the header
            try:
                await exchange.stream(response, faults)
            except StreamSilencedError:
                await self._never()
            except StreamResetError:
                return await self._reset(request)
            await response.write_eof()
            return response
        finally:
            exchange.close()

    async def _never(self) -> None:
        """Wait until the client goes or the server stops: both cancel the handler."""
        await self._loop.create_future()

    async def _reset(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        await self._never()
        raise AssertionError("unreachable")

    # The other paths ------------------------------------------------------------------------------------------------

    async def _health(self, _request: web.BaseRequest) -> web.StreamResponse:
        if self.faults.health == "hang":
            await self._never()
        if self.faults.health == "error":
            raise ApiError(503, "the fault health = error is set")
        return self._answer(b"")

    async def _metrics(self, _request: web.BaseRequest) -> web.StreamResponse:
        fault = self.faults.metrics
        if fault == "hang":
            await self._never()
        if fault == "error":
            raise ApiError(500, "the fault metrics = error is set")
        if fault == "frozen" and self._frozen_page is not None:
            page = self._frozen_page
        elif fault == "garbage":
            page = b"<html><body>Bad Gateway</body></html>\n\x00\xff{} NaN NaN NaN\n" * 8
        elif fault == "empty":
            page = b""
        else:
            page = self._render_metrics()
        if fault == "huge":
            line = b'padding_total{series="%010d"} 1.0\n'
            lines = self.faults.metrics_huge_mb * 1_000_000 // len(line % 0)
            page += b"".join(line % n for n in range(lines))
        return self._answer(page, content_type=CONTENT_TYPE)

    def _render_metrics(self) -> bytes:
        self.driver.refresh()
        readings = Readings(
            engine=self.engine,
            started_unix_s=self.started_unix_s,
            asleep=self.faults.asleep,
            rejected=self._rejected,
            http_requests=self._http_requests,
        )
        return self._page.render(readings)

    async def _list_models(self, _request: web.BaseRequest) -> web.StreamResponse:
        created = int(self.started_unix_s)
        parents: dict[str, str | None] = dict.fromkeys(self.options.models)
        parents |= dict.fromkeys(self._adapters, self.options.models[0])
        data: list[dict[str, object]] = [
            {
                "id": model,
                "object": "model",
                "created": created,
                "owned_by": "vllm",
                "root": model,
                "parent": parent,
                "max_model_len": None if parent else self.spec.max_model_len,
                "permission": [],
            }
            for model, parent in parents.items()
        ]
        return self._json({"object": "list", "data": data})

    async def _load_adapter(self, request: web.BaseRequest) -> web.StreamResponse:
        name = await _adapter_name(request)
        if name in self._adapters:
            raise ApiError(400, f"The lora adapter '{name}' has already been loaded.")
        self._adapters[name] = None
        return self._answer(f"Success: LoRA adapter '{name}' added successfully.".encode(), content_type="text/plain")

    async def _unload_adapter(self, request: web.BaseRequest) -> web.StreamResponse:
        name = await _adapter_name(request)
        if name not in self._adapters:
            raise ApiError(404, f"The lora adapter '{name}' cannot be found.")
        del self._adapters[name]
        return self._answer(f"Success: LoRA adapter '{name}' removed successfully.".encode(), content_type="text/plain")

    async def _version(self, _request: web.BaseRequest) -> web.StreamResponse:
        return self._json({"version": VERSION})

    async def _load(self, _request: web.BaseRequest) -> web.StreamResponse:
        return self._json({"server_load": self.driver.in_flight})

    async def _tokenize(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            body = json.loads(await request.read())
            prompt = render_chat(body) if "messages" in body else render_prompt(body["prompt"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ApiError(400, f"a prompt or messages are required: {error!r}") from None
        padded = prompt + b" " * (-len(prompt) % 4)
        tokens = list(memoryview(padded).cast("I"))
        return self._json({"count": count_tokens(prompt), "max_model_len": self.spec.max_model_len, "tokens": tokens})

    async def _render(self, request: web.BaseRequest) -> web.StreamResponse:
        if not self.options.render:
            raise ApiError(403, "render is not enabled on this server")
        return self._answer(rendered(_RENDER[request.path], await request.read(), self.options.models[0]))

    async def _reset_prefix_cache(self, _request: web.BaseRequest) -> web.StreamResponse:
        self.driver.refresh()
        if not self.engine.reset_prefix_cache():
            raise ApiError(500, "some blocks are in use; the prefix cache was not reset")
        return self._answer(b"")

    async def _get_faults(self, _request: web.BaseRequest) -> web.StreamResponse:
        return self._json(self.faults.as_dict())

    async def _post_faults(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            values = json.loads(await request.read() or b"{}")
            if not isinstance(values, dict):
                raise ApiError(400, "a JSON object is required")
            self.set_faults(**values)
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        return self._json(self.faults.as_dict())

    async def _get_requests(self, _request: web.BaseRequest) -> web.StreamResponse:
        return self._json({**asdict(self.ledger), "in_flight": self.ledger.in_flight})


async def _adapter_name(request: web.BaseRequest) -> str:
    """Raises ApiError (400)."""
    try:
        name = json.loads(await request.read())["lora_name"]
    except (ValueError, KeyError, TypeError):
        name = None
    if not isinstance(name, str) or not name:
        raise ApiError(400, "lora_name is required", param="lora_name")
    return name
