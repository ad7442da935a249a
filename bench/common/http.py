"""What does a process of the benchmark answer, and what has its Envoy counted?"""

from __future__ import annotations

import urllib.error
import urllib.request


def fetch(url: str, body: bytes | None = None) -> tuple[int, str]:
    """Status and text of a GET, or of a POST of JSON; status 0 when nothing answers."""
    request = urllib.request.Request(url, data=body, headers={"content-type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback never goes through a proxy
    try:
        with opener.open(request, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except OSError:
        return 0, ""


def parse_envoy_stats(text: str) -> dict[str, int]:
    """Counters and gauges of Envoy's /stats page by name; histograms are left out."""
    stats = {}
    for line in text.splitlines():
        name, _, number = line.rpartition(": ")
        if name and number.strip().isdigit():
            stats[name] = int(number)
    return stats


def envoy_stats(admin_port: int, pattern: str) -> dict[str, int]:
    return parse_envoy_stats(fetch(f"http://127.0.0.1:{admin_port}/stats?filter={pattern}")[1])


def gives_200(port: int, path: str) -> bool:
    return fetch(f"http://127.0.0.1:{port}{path}")[0] == 200
