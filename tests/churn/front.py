"""Which Envoy and which two service processes stand before the servers? The shipped envoy-eds.yaml and, added:

a second service process, a second pool (its servers come from DNS SRV records), and an access log in a file.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from extproc.cli._envoy import EnvoyProcess
from tests.churn.servers import COMMAND, Server, spawn
from tests.churn.verdict import EnvoyEntry, entry_of
from tests.support import envoy_admin, envoy_config
from tests.support.envoy_config import Json
from tests.support.envoy_stack import eventually

SRV_NAME = "_http._tcp.vllm.test"
_PER_ROUTE = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
_FILE_LOG = "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog"
_LOGGED = {
    "request": "%REQ(X-REQUEST-ID)%",
    "host": "%UPSTREAM_HOST%",
    "status": "%RESPONSE_CODE%",
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "started": "%START_TIME(%s.%3f)%",
    "duration_ms": "%DURATION%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
}


@dataclass(eq=False)
class Service:
    """One of the service's processes."""

    name: str
    grpc: int
    admin: int
    config: Path
    output: Path
    process: asyncio.subprocess.Process | None = field(default=None, repr=False)

    async def start(self) -> None:
        self.process = await spawn(*COMMAND, "serve", "--envoy", str(self.config), output=self.output)

    async def end(self, number: signal.Signals) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        await asyncio.wait_for(self.process.wait(), 60)


class Front:
    """Start it, change the servers that its sources name, ask it, stop it."""

    def __init__(self, folder: Path, *, binary: Path | None, quick: bool, dns: str) -> None:
        """`quick`: health checks and the service's goodbye as short as a short run needs; `dns`: ip:port."""
        self.folder = folder
        self.endpoints = folder / "endpoints.yaml"
        self.access_log = folder / "access.jsonl"
        self.envoy_log: list[str] = []
        self._quick = quick
        listener, admin = envoy_config.free_port(), envoy_config.free_port()
        self.url = f"http://127.0.0.1:{listener}"
        self.envoy_admin = f"http://127.0.0.1:{admin}"
        ports = [(envoy_config.free_port(), envoy_config.free_port()) for _ in range(2)]
        self.services: list[Service] = []
        for name, (grpc, service_admin) in zip("AB", ports, strict=True):
            config = self._config(dns, listener, admin, [grpc for grpc, _ in ports], grpc, service_admin, name)
            path = envoy_config.write(config, folder / f"envoy-{name}.yaml")
            self.services.append(Service(name, grpc, service_admin, path, folder / f"service-{name}.log"))
        self._envoy = EnvoyProcess(
            self.services[0].config,
            binary=binary,
            concurrency=1,
            on_line=self.envoy_log.append,
            options=("--file-flush-interval-msec", "200"),
        )
        self.session: aiohttp.ClientSession

    def _config(
        self, dns: str, listener: int, admin: int, grpc_ports: Sequence[int], grpc: int, service_admin: int, name: str
    ) -> Json:
        config = envoy_config.shipped("EDS")
        envoy_config.place(config, listener=listener, admin=admin, grpc=grpc, service_admin=service_admin, servers=())
        own = envoy_config.settings_of(config)
        own |= {
            "default_pool": "vllm",
            "shutdown_notice_s": 1.5 if self._quick else 5,
            "shutdown_grace_s": 1 if self._quick else 3,  # shorter than many answers: those go on without the service
            "drain": {"state_file": str(self.folder / f"drains-{name}.json")},
        }
        own["pools"] = {
            "vllm": {"discovery": {"file": {"path": str(self.endpoints), "poll_s": 0.3}}},
            "vllm-srv": {"discovery": {"srv": {"name": SRV_NAME, "servers": [dns]}}, "dns_refresh_s": 1},
        }
        service = envoy_config.cluster(config, "extproc")
        service["load_assignment"]["endpoints"] = [
            {"lb_endpoints": [
                {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
                for port in grpc_ports
            ]}
        ]  # fmt: skip
        if self._quick:
            for check in service["health_checks"]:
                check.update(interval="0.5s", no_traffic_interval="0.5s")
        second = copy.deepcopy(envoy_config.cluster(config, "vllm"))
        second["name"] = "vllm-srv"
        config["static_resources"]["clusters"].append(second)
        manager = envoy_config.connection_manager(config)
        manager["preserve_external_request_id"] = True  # the client's ids tell its requests in all logs
        manager["access_log"].append(
            {
                "name": "envoy.access_loggers.file",
                "typed_config": {
                    "@type": _FILE_LOG,
                    "path": str(self.access_log),
                    "log_format": {"json_format": _LOGGED},
                },
            }
        )
        routes = manager["route_config"]["virtual_hosts"][0]["routes"]
        place = next(n for n, route in enumerate(routes) if route["name"] == "inference")
        routes.insert(
            place,
            {
                "name": "srv",
                "match": {"prefix": "/", "headers": [{"name": "x-pool", "string_match": {"exact": "srv"}}]},
                "route": {"cluster": "vllm-srv", "timeout": "0s"},
                "typed_per_filter_config": {
                    "envoy.filters.http.ext_proc": {
                        "@type": _PER_ROUTE,
                        "overrides": {"grpc_initial_metadata": [{"key": "x-extproc-pool", "value": "vllm-srv"}]},
                    }
                },
            },
        )
        return config

    async def start(self) -> None:
        """Both processes and Envoy; returns when Envoy serves."""
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
        for service in self.services:
            await service.start()
        for service in self.services:
            await self.until_ready(service)
        await self._envoy.start()
        await eventually(self._envoy_is_ready, "Envoy is ready", timeout_s=60)
        for service in self.services:
            await self.until_used(service)

    async def stop(self) -> None:
        """Ends all of it, however it stands; again is no mistake."""
        await self._envoy.stop()
        for service in self.services:
            if service.process is not None and service.process.returncode is None:
                service.process.kill()
                await service.process.wait()
        await self.session.close()

    # The service.

    async def until_ready(self, service: Service) -> None:
        async def ready() -> bool:
            assert service.process is not None
            if service.process.returncode is not None:
                raise RuntimeError(f"service {service.name} exited: {service.output.read_text()[-1000:]}")
            try:
                async with self.session.get(f"http://127.0.0.1:{service.admin}/readyz") as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False

        await eventually(ready, f"service {service.name} is ready")

    async def until_used(self, service: Service) -> None:
        """Envoy holds this process for healthy."""

        async def used() -> bool:
            return any(
                host["address"]["socket_address"]["port_value"] == service.grpc
                and not any(value is True for value in host["health_status"].values())
                for host in await self._hosts("extproc")
            )

        await eventually(used, f"Envoy uses service {service.name}")

    async def ask(self, service: Service, method: str, path: str) -> Any:
        """JSON from the admin port. Raises aiohttp.ClientError: the process is away, or the answer is no 2xx."""
        async with self.session.request(method, f"http://127.0.0.1:{service.admin}{path}") as response:
            if response.status >= 300:
                text = await response.text()
                raise aiohttp.ClientResponseError(
                    response.request_info, (), status=response.status, message=f"{method} {path}: {text}"
                )
            return await response.json()

    async def explain(self, service: Service, body: Json) -> Any:
        async with self.session.post(f"http://127.0.0.1:{service.admin}/explain", json=body) as response:
            return await response.json()

    async def in_flight(self) -> int:
        """What the processes count, in sum."""
        statuses = [await self.ask(each, "GET", "/status") for each in self.services]
        return sum(int(status["requests"]["in_flight"]) for status in statuses)

    async def endpoint(self, service: Service, pool: str, address: str) -> Json | None:
        """What a process says of one server; None: it does not have it."""
        status = await self.ask(service, "GET", "/status")
        return next((e for e in status["pools"][pool]["endpoints"] if e["address"] == address), None)

    # The servers that it is told of.

    def list_servers(self, servers: Iterable[Server], **options: object) -> None:
        """Write the file anew; `options` hold for all."""
        entries = [{"address": server.address, **options} for server in servers]
        self.write(json.dumps({"endpoints": entries}))

    def write(self, text: str) -> None:
        """Replace the file in one step, as a ConfigMap is."""
        new = self.endpoints.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.endpoints)  # noqa: PTH105 - its name says that it replaces

    # Envoy.

    async def hosts(self, cluster: str) -> set[str]:
        """Addresses that Envoy has in a cluster."""
        found = [host["address"]["socket_address"] for host in await self._hosts(cluster)]
        return {f"{each['address']}:{each['port_value']}" for each in found}

    async def _hosts(self, cluster: str) -> list[Json]:
        async with self.session.get(f"{self.envoy_admin}/clusters?format=json") as response:
            statuses = (await response.json(content_type=None))["cluster_statuses"]
        return next((each.get("host_statuses", []) for each in statuses if each["name"] == cluster), [])

    def log_entries(self) -> dict[str, EnvoyEntry]:
        """Envoy's access log, by request; complete once Envoy has ended."""
        if not self.access_log.exists():
            return {}
        return dict(entry_of(json.loads(line)) for line in self.access_log.read_text().splitlines())

    async def _envoy_is_ready(self) -> bool:
        return await envoy_admin.is_up(self._envoy, self.session, self.envoy_admin)
