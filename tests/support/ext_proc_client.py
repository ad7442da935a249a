"""Envoy's side of an ext_proc stream over a real gRPC channel, without Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from extproc.config.settings import GrpcSettings
from extproc.pb import accesslog_pb2
from extproc.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from extproc.router import Router
from extproc.server import access_log, health, listener, processor

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
LOGS = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
HEADERS = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
# BodySendMode of the protocol
NONE, STREAMED, BUFFERED, PARTIAL, DUPLEX = range(5)


def message(body_mode: int | None = None, response_mode: int = NONE) -> ProcessingRequest:
    """An empty message; with a body mode it is a stream's first."""
    made = ProcessingRequest()
    if body_mode is not None:
        made.protocol_config.request_body_mode = body_mode  # type: ignore[assignment]
        made.protocol_config.response_body_mode = response_mode  # type: ignore[assignment]
    return made


def headers(
    body_mode: int, *, end: bool = False, response_mode: int = NONE, fields: dict[str, str] | None = None
) -> ProcessingRequest:
    made = message(body_mode, response_mode)
    made.request_headers.end_of_stream = end
    for key, value in (HEADERS if fields is None else fields).items():
        made.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    return made


def body(content: bytes = b"", *, end: bool = True, first_with_mode: int | None = None) -> ProcessingRequest:
    made = message(first_with_mode)
    made.request_body.body = content
    made.request_body.end_of_stream = end
    return made


def response(part: str, *, content: bytes = b"", end: bool = False) -> ProcessingRequest:
    """`part`: headers, body or trailers."""
    made = ProcessingRequest()
    if part == "headers":
        made.response_headers.headers.headers.add(key=":status", raw_value=b"200")
    elif part == "body":
        made.response_body.body = content
        made.response_body.end_of_stream = end
    else:
        made.response_trailers.SetInParent()
    return made


class Stream:
    """One ext_proc stream."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def send(self, *messages: ProcessingRequest | bytes) -> None:
        for each in messages:
            await self.call.write(each if isinstance(each, bytes) else each.SerializeToString())

    async def read(self) -> ProcessingResponse | None:
        """The next reply; None: the service ended the stream."""
        try:
            raw = await asyncio.wait_for(self.call.read(), 10)
        except grpc.aio.AioRpcError:  # with an error status; see `code`
            return None
        return None if raw is grpc.aio.EOF else ProcessingResponse.FromString(raw)

    async def ask(self, *messages: ProcessingRequest | bytes) -> ProcessingResponse | None:
        await self.send(*messages)
        return await self.read()

    async def end(self) -> str:
        """Half-close, and the name of the status that the stream ends with."""
        await self.call.done_writing()
        return await self.code()

    async def code(self) -> str:
        code: grpc.StatusCode = await asyncio.wait_for(self.call.code(), 10)
        return code.name


class Client:
    """A channel to the service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self._process = channel.stream_stream(PROCESS)
        self._logs = channel.stream_unary(LOGS)
        self._held: list[Stream] = []  # grpcio before 1.83 cancels a call that nobody holds

    def stream(self, metadata: tuple[tuple[str, str], ...] = ()) -> Stream:
        self._held.append(Stream(self._process(metadata=metadata)))
        return self._held[-1]

    def logs(self) -> Any:
        """A StreamAccessLogs call; see `log_batch`."""
        return self._logs()


def destination(reply: ProcessingResponse | None) -> str:
    assert reply is not None
    return reply.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"]  # type: ignore[no-any-return,index,call-overload]


def pick_id(reply: ProcessingResponse | None) -> str:
    assert reply is not None
    return reply.dynamic_metadata["envoy.lb"]["x-gateway-pick-id"]  # type: ignore[no-any-return,index,call-overload]


def log_batch(*entries: tuple[str, str, int]) -> bytes:
    """Final entries: pick id, served host:port, status."""
    batch = accesslog_pb2.StreamAccessLogsMessage()
    for pick, served, status in entries:
        entry = batch.http_logs.log_entry.add()
        entry.common_properties.custom_tags[access_log.PICK_ID_TAG] = pick
        ip, _, port = served.rpartition(":")
        address = entry.common_properties.upstream_remote_address.socket_address
        address.address, address.port_value = ip, int(port)
        entry.common_properties.access_log_type = accesslog_pb2.DownstreamEnd
        entry.response.response_code.value = status
    return batch.SerializeToString()


@dataclass
class Service:
    """The gRPC shells around a router, listening on loopback; what the application wires is set by hand here."""

    router: Router
    settings: GrpcSettings = field(default_factory=lambda: GrpcSettings(listen="127.0.0.1:0"))
    max_body_bytes: int = 1 << 20
    close_early: bool = False
    ready: bool = True
    clock: Callable[[], float] | None = None
    target: str = ""

    def __post_init__(self) -> None:
        clock = {"clock": self.clock} if self.clock is not None else {}
        self.processor = processor.Processor(
            self.router, max_body_bytes=self.max_body_bytes, close_early=lambda: self.close_early, **clock
        )
        self.access_log = access_log.AccessLogReceiver(self.router, **clock)
        self.health = health.Health(lambda: self.ready)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Service]:
        services = (
            processor.handlers(self.processor),
            access_log.handlers(self.access_log),
            health.handlers(self.health),
        )
        server, self.target = listener.build(self.settings, self.max_body_bytes, services)
        await server.start()
        try:
            yield self
        finally:
            await server.stop(0)

    @asynccontextmanager
    async def client(
        self,
        credentials: grpc.ChannelCredentials | None = None,
        options: list[tuple[str, Any]] | None = None,
        target: str | None = None,
    ) -> AsyncIterator[Client]:
        """`target`: another address than the service's own."""
        target = target or self.target
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1), *(options or [])]
        channel = (
            grpc.aio.insecure_channel(target, options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options)
        )
        async with channel:
            yield Client(channel)
