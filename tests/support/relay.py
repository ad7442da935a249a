"""A TCP relay on loopback whose connections can be cut, as when the other side's machine or process dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from extproc.rpc.server import accept_no_more


class Relay:
    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # one a connection
        self.address = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Reset every connection, and take no new one."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def stop(self) -> None:
        """Cut, and wait until every connection is closed: one may just have been accepted."""
        if self._server is not None and self._server.is_serving():
            await accept_no_more(self._server)
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
            self._writers.add(there_writer)
            try:
                await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
            finally:
                self._writers.discard(there_writer)
                there_writer.close()
        finally:
            self._writers.discard(writer)
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:  # cut
        pass


@asynccontextmanager
async def relay(target: str) -> AsyncIterator[Relay]:
    """A running relay to `host:port`."""
    made = Relay(target)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
