"""A server's metrics page on loopback, saying what a test tells it to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from extproc.rpc.server import accept_no_more


class MetricsServer:
    """Set `page` (None: answer 404), or the load that the usual page shows."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.kv_usage = 0.0
        self.page: str | None = ""  # "": made of the numbers above
        self.version: str | None = None  # None: it does not tell
        self.scrapes = 0
        self.address = ""  # host:port

    def text(self) -> str:
        label = '{engine="0",model_name="m"}'
        return (
            f"vllm:num_requests_running{label} {self.running}\n"
            f"vllm:num_requests_waiting{label} {self.waiting}\n"
            f"vllm:kv_cache_usage_perc{label} {self.kv_usage}\n"
        )

    async def _answer(self, _request: web.Request) -> web.Response:
        self.scrapes += 1
        if self.page is None:
            return web.Response(status=404)
        return web.Response(text=self.page or self.text())

    async def _tell_version(self, _request: web.Request) -> web.Response:
        return web.Response(status=404) if self.version is None else web.json_response({"version": self.version})

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[MetricsServer]:
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        app.router.add_get("/version", self._tell_version)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.address = f"127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            for site in runner.sites:
                await accept_no_more(site._server)  # type: ignore[attr-defined]
            await runner.cleanup()
