"""A listening gRPC server: it accepts connections, and ends them in order."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping, Sequence

from extproc.rpc.call import Handler
from extproc.rpc.session import Load, Rules, Session
from extproc.tls import HANDSHAKE_S

BACKLOG = 1024  # connections that wait to be accepted: all Envoys may come at once
_ACCEPTING_TURNS = 5  # of the loop, until a connection that was accepted has become a session


async def accept_no_more(listener: asyncio.Server) -> None:
    """Close it, but not under a connection that was just accepted.

    The loop of asyncio takes some turns to make a transport of one; when the listener is closed meanwhile it drops the
    connection without closing it (Python 3.11).
    """
    loop = asyncio.get_running_loop()
    for listening in listener.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(_ACCEPTING_TURNS):
        await asyncio.sleep(0)
    listener.close()


class Server:
    """Serve with `start`, once."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        sockets: Sequence[socket.socket],
        *,
        max_message_bytes: int,
        tls: ssl.SSLContext | None = None,
        ping_after_s: float,
        ping_timeout_s: float,
    ) -> None:
        """`handlers` by `/package.Service/Method`. `sockets` listen already, and are the server's to close. With `tls`
        only clients that speak it are served. Who was silent for `ping_after_s` is pinged, and closed when silent for
        `ping_timeout_s` more: a client whose machine died says nothing."""
        self._rules = Rules(
            {path.encode(): handler for path, handler in handlers.items()},
            max_message_bytes,
            ping_after_s,
            ping_timeout_s,
        )
        self._tls = tls
        self._sockets = list(sockets)
        self._listeners: list[asyncio.Server] = []
        self._load = Load()

    async def start(self) -> None:
        """Accept connections."""
        while self._sockets:
            listening = self._sockets.pop()
            self._listeners.append(
                await asyncio.get_running_loop().create_server(
                    lambda: Session(self._rules, self._load),
                    sock=listening,
                    ssl=self._tls,
                    ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S,
                    backlog=BACKLOG,
                )
            )

    async def stop(self, grace_s: float) -> None:
        """Accept no more, wait for the open calls at most `grace_s`, end those that are left, and close.

        May be called again meanwhile, with less patience.
        """
        while self._sockets:  # never started
            self._sockets.pop().close()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            await accept_no_more(listener)
        if listeners:
            for session in self._load.sessions:
                session.going_away()
        now = asyncio.get_running_loop().time
        until_s = now() + grace_s
        # Again and again: calls still come that were on their way as we said not to.
        while (left_s := until_s - now()) > 0 and (tasks := self._running()):
            await asyncio.wait(tasks, timeout=left_s)
        tasks = self._running()
        for session in list(self._load.sessions):
            session.close()
        if tasks:
            await asyncio.wait(tasks)

    def _running(self) -> list[asyncio.Task[None]]:
        return [task for session in self._load.sessions for task in session.tasks if not task.done()]
