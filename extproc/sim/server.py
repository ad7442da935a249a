"""How does a simulated vLLM server live: start, drain, fall silent, die?

    async with SimServer("a", INSTANT) as server:
        ...  # server.url, server.ledger, server.set_faults(metrics="hang")

The life of a server: `start`; then one of `terminate` (what SIGTERM does to vLLM), `stop` (close everything in order)
or `kill` (what SIGKILL does: connections are reset). It can be started again, as a new process would be, on the same
port and with an empty cache. What it answers is in `api`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from extproc.sim.api import Ledger, ServerOptions, SimApi
from extproc.sim.engine import Engine
from extproc.sim.faults import Faults
from extproc.sim.spec import EngineSpec

KEEPALIVE_S = 5.0  # uvicorn's default: idle connections are closed after it
_POLL_S = 0.02
_CLOSE_S = 1.0  # for handlers to end after their connection is closed
_logger = logging.getLogger(__name__)


class SimServer:
    """One simulated vLLM server on the running event loop; several may share it.

    `host`, `port`: where it listens; port 0 takes a free one, which `port` tells after `start`. `seed`: of the engine's
    jitter and of faults by ratio. `shutdown_timeout_s`: vLLM's --shutdown-timeout. `exit_linger_s`: a draining server
    leaves so long after its last request (5 s were seen). `cold_port_closed`: during `faults.cold_start_s` connections
    are refused, instead of answered with 503.
    """

    def __init__(
        self,
        name: str,
        spec: EngineSpec,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        options: ServerOptions | None = None,
        faults: Faults | None = None,
        shutdown_timeout_s: float = 0.0,
        exit_linger_s: float = 5.0,
        cold_port_closed: bool = False,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.spec = spec
        self.host = host
        self.port = port
        self.options = options if options is not None else ServerOptions()
        self.shutdown_timeout_s = shutdown_timeout_s
        self.exit_linger_s = exit_linger_s
        self.cold_port_closed = cold_port_closed
        self.seed = seed
        self.ledger = Ledger()
        self._faults = faults if faults is not None else Faults()
        self._api: SimApi | None = None
        self._http: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._exited = asyncio.Event()

    async def start(self) -> None:
        """Listen (or, with `cold_port_closed`, begin to wait for it). Raises OSError if the port is taken."""
        sock = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.host, self.port))
            sock.setblocking(False)
            self.port = sock.getsockname()[1]
            self._exited = asyncio.Event()
            self._api = api = SimApi(self.name, self.spec, self.options, self._faults, self.ledger, seed=self.seed)
            self._http = web.Server(
                api.handle,
                request_factory=_make_request,
                handler_cancellation=True,
                keepalive_timeout=KEEPALIVE_S,
                access_log=None,
                auto_decompress=False,
            )
            if self.cold_port_closed and self._faults.cold_start_s > 0:
                self._spawn(self._listen_later(sock, self._faults.cold_start_s), "cold start")
            else:
                await self._listen(sock)
        except BaseException:
            sock.close()
            raise

    @property
    def api(self) -> SimApi:
        """The current (or last) life. Raises RuntimeError before the first `start`."""
        if self._api is None:
            raise RuntimeError(f"simulated server {self.name} was not started")
        return self._api

    @property
    def engine(self) -> Engine:
        """The engine of the current (or last) life, brought to now."""
        self.api.driver.refresh()
        return self.api.engine

    @property
    def address(self) -> str:
        """host:port"""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The server's root, without a slash at the end."""
        return f"http://{self.address}"

    @property
    def open_connections(self) -> int:
        """Connections of clients, idle ones included."""
        return len(self._http.connections) if self._http is not None else 0

    @property
    def faults(self) -> Faults:
        """The switches now."""
        return self._api.faults if self._api is not None else self._faults

    def set_faults(self, **values: Any) -> None:
        """Set some switches, for this life and those to come. Raises ValueError as `Faults.changed` does."""
        if self._http is not None:
            self.api.set_faults(**values)
        self._faults = self._faults.changed(values)

    def terminate(self) -> None:
        """Do what vLLM does on SIGTERM; `wait_exited` tells when the process would be gone."""
        if self._http is None or self.api.draining:
            return
        self.api.draining = True
        self._spawn(self._drain() if self.shutdown_timeout_s > 0 else self._fall_silent(), "shutdown")

    async def wait_exited(self) -> None:
        """Wait until the server has stopped, in whatever way."""
        await self._exited.wait()

    async def stop(self) -> None:
        """Close the listener and every connection, and wait for their handlers."""
        await self._cancel_tasks()
        await self._close()

    async def kill(self) -> None:
        """Reset every connection, as the end of a killed process does."""
        await self._cancel_tasks()
        await self._close(reset=True)

    async def __aenter__(self) -> SimServer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"vllm-sim {self.name} {what}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, sock: socket.socket) -> None:
        assert self._http is not None
        self._listener = await asyncio.get_running_loop().create_server(self._http, sock=sock, backlog=2048)
        _logger.info("%s listens on %s", self.name, self.address)

    async def _listen_later(self, sock: socket.socket, delay_s: float) -> None:
        try:
            await asyncio.sleep(delay_s)
            await self._listen(sock)
        except BaseException:
            sock.close()
            raise

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _close(self, *, reset: bool = False) -> None:
        self._close_listener()
        if self._http is not None:
            self.api.driver.halt()
            self._http.pre_shutdown()
            for connection in self._http.connections:
                if connection.transport is not None:
                    if reset:
                        connection.transport.abort()
                    else:
                        connection.transport.close()
            # The loss of its connection cancels a handler; a connection is listed until its handler has ended.
            deadline_s = asyncio.get_running_loop().time() + _CLOSE_S
            while self._http.connections and asyncio.get_running_loop().time() < deadline_s:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await self._http.shutdown(0.01)  # 0 would mean no bound
            self._http = None
        self._exited.set()

    async def _fall_silent(self) -> None:
        """--shutdown-timeout 0: no new connections, no more tokens, no word; exit when the last client has gone."""
        _logger.info("%s was told to stop: its streams fall silent", self.name)
        self._close_listener()
        self.api.driver.halt()
        await self._leave_when_alone()

    async def _drain(self) -> None:
        """--shutdown-timeout above 0: what runs may end in time, what comes gets 500, /health stays 200."""
        _logger.info("%s was told to stop: up to %.0f s for its requests", self.name, self.shutdown_timeout_s)
        now = asyncio.get_running_loop().time
        deadline_s = now() + self.shutdown_timeout_s
        while self.ledger.in_flight and now() < deadline_s:  # noqa: ASYNC110 - a handler's end is no event here
            await asyncio.sleep(_POLL_S)
        if not self.ledger.in_flight:
            await asyncio.sleep(self.exit_linger_s)
            await self._close()
            return
        self._close_listener()
        self.api.driver.die()
        await self._leave_when_alone()

    async def _leave_when_alone(self) -> None:
        assert self._http is not None
        self._http.pre_shutdown()  # closes idle connections
        while self._http.connections:  # noqa: ASYNC110 - web.Server has no event for it
            await asyncio.sleep(_POLL_S)
        await self._close()


def _make_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    """A request whose body may have any size: vLLM sets no limit."""
    return web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=0)
