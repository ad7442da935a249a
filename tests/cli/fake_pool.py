"""A service's admin port and an operator's command, with a folder for a fleet: a file is a server that runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from aiohttp import web

POOL = "vllm"
SCRIPT = """\
#!/bin/sh
cd "$(dirname "$0")"
echo "$* $EXTPROC_POOL $EXTPROC_DESIRED" >>calls
[ ! -e slow ] || { touch began; sleep "$(cat slow)"; }
[ ! -e broken ] || { echo "no machine is free" >&2; exit 7; }
case "$1" in
start)
  port=$(cat next 2>/dev/null || echo 8001)
  echo $((port + 1)) >next
  touch "127.0.0.1:$port.server"
  echo "127.0.0.1:$port"
  ;;
stop) rm -f "$2.server" ;;
esac
"""


class FakePool:
    """As much of a service as `extproc scale` asks for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "fleet.sh"
        self.script.write_text(SCRIPT)
        self.script.chmod(0o755)
        self.desired = 1
        self.problem = ""
        self.cold_start_s = 0.2
        self.in_flight: dict[str, int] = {}
        self.phases: dict[str, str] = {}
        self.started = time.time()
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> FakePool:
        app = web.Application()
        one = "/v1/endpoints/{endpoint}/drain"
        app.add_routes(
            [
                web.get("/status", self._status),
                web.get("/autoscale/v1/pools/{pool}", self._recommendation),
                web.get("/v1/drain-victim", self._victim),
                web.post(one, self._drain),
                web.get(one, self._drain),
                web.delete(one, self._drain),
            ]
        )
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def servers(self) -> list[str]:
        return sorted(file.name.removesuffix(".server") for file in self.folder.glob("*.server"))

    @property
    def calls(self) -> list[str]:
        """The command's, with two values of its environment."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def add(self, endpoint: str) -> None:
        (self.folder / f"{endpoint}.server").touch()

    def _state(self, endpoint: str) -> str:
        if self._phase(endpoint) is not None:
            return self.phases[endpoint]
        age_s = time.time() - (self.folder / f"{endpoint}.server").stat().st_mtime
        return "ready" if age_s >= self.cold_start_s else "starting"

    def _phase(self, endpoint: str) -> str | None:
        if self.phases.get(endpoint) == "draining" and not self.in_flight.get(endpoint):
            self.phases[endpoint] = "drained"
        return self.phases.get(endpoint)

    async def _status(self, _: web.Request) -> web.Response:
        rows = [{"address": each, "hostname": None, "state": self._state(each)} for each in self.servers]
        return web.json_response({"pools": {POOL: {"endpoints": rows}}})

    async def _recommendation(self, request: web.Request) -> web.Response:
        if request.match_info["pool"] != POOL:
            return web.json_response({"error": 'no pool "vlm" gets recommendations'}, status=404)
        page: dict[str, Any] = {"desired": self.desired, "min_replicas": 0, "max_replicas": 8, "stale": False}
        page |= {"reason": f"{self.desired} by the numbers", "cold_start_s": self.cold_start_s}
        if self.problem:
            return web.json_response(page | {"error": self.problem, "stale": True}, status=503)
        return web.json_response(page)

    async def _victim(self, _: web.Request) -> web.Response:
        ready = [each for each in self.servers if self._state(each) == "ready"]
        if not ready:
            return web.json_response({"error": "no server should go now: none is ready"}, status=409)
        victim = min(ready, key=lambda each: (self.in_flight.get(each, 0), each))
        return web.json_response({"endpoint": victim, "why": "fewest tokens in flight"})

    async def _drain(self, request: web.Request) -> web.Response:
        endpoint = request.match_info["endpoint"]
        if endpoint not in self.servers:
            return web.json_response({"error": f"no endpoint {endpoint}"}, status=404)
        if request.method == "POST":
            self.phases.setdefault(endpoint, "draining")
        elif request.method == "DELETE":
            self.phases.pop(endpoint, None)
        phase, flying = self._phase(endpoint), self.in_flight.get(endpoint, 0)
        shown: dict[str, Any] = {"endpoint": endpoint, "state": self._state(endpoint), "phase": phase}
        shown |= {"in_flight": flying, "running": 0, "waiting": 0, "deadline_s": None, "open_at_end": None}
        return web.json_response(shown | {"service_started": self.started})
