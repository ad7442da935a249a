"""The admin port: its socket, its TLS, and who may hold a connection to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from extproc.admin.guard import Asked, Guard
from extproc.bug_log import WithoutText, log_bug
from extproc.config.settings import AdminSettings
from extproc.endpoint import format_host, split_host_port
from extproc.sockets import bound
from extproc.tls import HANDSHAKE_S, Certificates

log = logging.getLogger(__name__)
_of_server = logging.getLogger(f"{__name__}.http")  # the HTTP server's: it logs what it cannot parse
_of_server.addFilter(WithoutText())

MOST_CONNECTIONS = 512  # Prometheus, probes, hooks of servers, people; one more is closed at once
IDLE_S = 20.0  # a connection on which no request is whole for so long is closed
REQUEST_S = 60.0  # for a request's body to come and to be answered

# When those connections are let go on which there was no whole request yet. The HTTP server's own timer begins with an
# answer, in its older versions.
_Heads = dict[web.RequestHandler, asyncio.TimerHandle]
_HEADS = web.AppKey("heads", dict)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Full(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


@dataclass(frozen=True, slots=True)
class AdminPort:
    """An open one."""

    address: str  # host:port
    _runner: web.AppRunner
    _listeners: tuple[asyncio.Server, ...]
    _heads: _Heads

    async def close(self) -> None:
        for timer in self._heads.values():
            timer.cancel()
        for listener in self._listeners:
            listener.close()
        await self._runner.cleanup()


async def open_port(settings: AdminSettings, application: web.Application) -> AdminPort:
    """Serve the application.

    Raises:
        OSError: the port cannot be opened.
        TlsFileError: a file of `admin.tls` cannot be used.
    """
    tls = None
    if settings.tls is not None:
        tls = Certificates(settings.tls, "admin.tls", alpn=["http/1.1"], demand=False).context
    heads: _Heads = {}
    application[_HEADS] = heads
    host, number = split_host_port(settings.listen, lowest_port=0)
    sockets = bound(host, number, backlog=128)
    runner = web.AppRunner(
        application, access_log=None, handle_signals=False, keepalive_timeout=IDLE_S, logger=_of_server
    )
    await runner.setup()
    server = runner.server
    assert server is not None, "it is set up"

    loop, timeout_s = asyncio.get_running_loop(), None if tls is None else HANDSHAKE_S

    def protocol() -> asyncio.Protocol:
        if len(server.connections) >= MOST_CONNECTIONS:
            return _Full()
        made = server()
        heads[made] = loop.call_later(IDLE_S, let_go, made)
        return made

    def let_go(connection: web.RequestHandler) -> None:
        del heads[connection]
        connection.force_close()

    listeners = [
        await loop.create_server(protocol, sock=each, ssl=tls, ssl_handshake_timeout=timeout_s) for each in sockets
    ]
    return AdminPort(format_host(host, sockets[0].getsockname()[1]), runner, tuple(listeners), heads)


def guarded(guard: Guard, of_itself: Callable[[web.Request], bool]) -> Callable[..., Awaitable[web.StreamResponse]]:
    """A middleware: what the guard refuses is answered so, in JSON, and what takes too long, or fails, too.

    `of_itself`: whether a server asks for its own drain.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        waited_for = request.app.get(_HEADS, {}).pop(request.protocol, None)
        if waited_for is not None:
            waited_for.cancel()
        certified = bool(request.get_extra_info("peercert"))
        asked = Asked(
            request.method, request.path, request.headers, request.can_read_body, certified, of_itself(request)
        )
        refusal = guard.judge(asked)
        if refusal is not None:
            headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
            return web.json_response({"error": refusal.reason}, status=refusal.status, headers=headers)
        try:
            async with asyncio.timeout(REQUEST_S):
                response = await handler(request)
        except TimeoutError:
            return web.json_response({"error": f"no whole request within {REQUEST_S:g} s"}, status=408)
        except web.HTTPException:
            raise
        except Exception as error:  # as it would be, but for the log
            log_bug(log, "bug in an admin page", error)
            return web.json_response({"error": "internal error; see the log of the service"}, status=500)
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        return response

    return check
