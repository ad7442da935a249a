"""What does a running Envoy say of itself on its admin port, and how is it told to take no more?"""

from __future__ import annotations

from typing import Any, Self

import aiohttp

_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


class EnvoyAdmin:
    """A client of one Envoy's admin port. Every call raises aiohttp.ClientError or TimeoutError when it is gone."""

    def __init__(self, address: str) -> None:
        """`address`: host:port, or the path of a Unix socket."""
        unix = address.startswith("/")
        self.url = "http://envoy" if unix else f"http://{address}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(address) if unix else None, timeout=_TIMEOUT
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._session.close()

    async def ready(self) -> bool:
        """Whether it serves: its clusters are initialised and its listeners open."""
        async with self._session.get(f"{self.url}/ready") as response:
            return response.status == 200

    async def listeners(self) -> list[str]:
        """Addresses of the data ports, host:port (port 0 in the file is the real one here)."""
        out = []
        for status in (await self._json("/listeners?format=json")).get("listener_statuses", []):
            address = status.get("local_address", {}).get("socket_address")
            if address:
                out.append(f"{address['address']}:{address['port_value']}")
        return out

    async def stats(self, pattern: str) -> dict[str, int]:
        """Counters and gauges whose name the regular expression finds."""
        page = await self._json("/stats", filter=pattern, format="json")
        return {stat["name"]: stat["value"] for stat in page["stats"] if "value" in stat}

    async def active_requests(self) -> int:
        """Requests of clients that have not ended."""
        found = await self.stats(r"^http\..*\.downstream_rq_active$")
        return sum(value for name, value in found.items() if not name.startswith(("http.admin.", "http.async-client.")))

    async def requests_by_host(self, cluster: str) -> dict[str, int]:
        """Requests sent to each host of a cluster since the start, retries included, health checks not."""
        for status in (await self._json("/clusters?format=json")).get("cluster_statuses", []):
            if status["name"] == cluster:
                return {_host(host): _counter(host, "rq_total") for host in status.get("host_statuses", [])}
        return {}

    async def stop_accepting(self) -> None:
        """Close the data ports; open connections may end what they run and are then closed."""
        for command in ("/healthcheck/fail", "/drain_listeners"):  # the first: "connection: close" on every answer
            async with self._session.post(f"{self.url}{command}") as response:
                response.raise_for_status()

    async def _json(self, path: str, **query: str) -> Any:
        async with self._session.get(f"{self.url}{path}", params=query) as response:
            response.raise_for_status()
            return await response.json(content_type=None)


def _host(status: dict[str, Any]) -> str:
    address = status["address"]["socket_address"]
    return f"{address['address']}:{address['port_value']}"


def _counter(status: dict[str, Any], name: str) -> int:
    return next((int(stat.get("value", 0)) for stat in status.get("stats", []) if stat["name"] == name), 0)
