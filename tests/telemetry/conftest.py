"""Servers that answer with exactly the bytes a test wants, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from extproc.endpoint import Address, Endpoint

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
TLS = Path(__file__).parent / "tls"
PAGE = b'vllm:num_requests_running{engine="0"} 2\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'


def http(body: bytes, *, status: str = "200 OK", headers: str = "", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n{headers}\r\n".encode() + body


def sends(data: bytes, *, then_close: bool = False) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if then_close:
            writer.close()

    return answer


async def hangs(writer: asyncio.StreamWriter) -> None:
    """Says nothing until the client gives up; `ByteServer` does it, which sees the client close."""
    raise AssertionError("not to be called")


@dataclass
class ByteServer:
    """Reads a request's head, then does what `answer` says; on a kept connection again and again."""

    answer: Answer
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    at_once: int = 0  # requests being answered now
    most_at_once: int = 0
    port: int = 0
    host: str = "127.0.0.1"
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(Address.of(self.host, self.port))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                try:
                    await (reader.read() if self.answer is hangs else self.answer(writer))
                finally:
                    self.at_once -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has gone, or the test is over
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Serve(Protocol):
    async def __call__(
        self, answer: Answer, *, tls: bool = False, host: str = "127.0.0.1", port: int = 0
    ) -> ByteServer: ...


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(answer: Answer, *, tls: bool = False, host: str = "127.0.0.1", port: int = 0) -> ByteServer:
            context = None
            if tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
            fake = ByteServer(answer, host=host)
            server = await asyncio.start_server(fake.serve, host, port, ssl=context)
            fake.port = server.sockets[0].getsockname()[1]

            async def stop() -> None:
                server.close()
                await fake.stop()
                await server.wait_closed()

            stack.push_async_callback(stop)
            return fake

        yield start


async def until(condition: Callable[[], bool], *, within_s: float = 5.0) -> None:
    """Wait for the condition; a failed test if it does not come true."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - nobody sets an event for what the fakes see
            await asyncio.sleep(0.005)
