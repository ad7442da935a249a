"""What does docker-compose.yml say, and does it work? Its commands can be run without containers.

    unshare --net python -m tests.support.compose

runs every service that there is a program for here, with the very commands of the file, in a network of its own, so
that the shipped ports are free; for a mounted path stands the file that is mounted there. It prints what can be seen
from outside, as JSON. What only a container engine gives (users, read-only roots, images) it leaves out.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import socket
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.cli.command import ENTRY
from tests.support.envoy_wheels import ROOT, binary
from tests.support.waiting import eventually

FILE = ROOT / "docker-compose.yml"
COMPOSE = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ENVOY = yaml.safe_load((ROOT / "envoy" / "envoy.yaml").read_text())

PATIENCE_S = 180.0  # of each wait, on a machine that others use
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def mounts(service: str) -> dict[str, Path]:
    """What of the repository is mounted, by its path in the container."""
    pairs = (volume.split(":")[:2] for volume in SERVICES[service].get("volumes", ()))
    return {inside: ROOT / outside for outside, inside in pairs if outside.startswith(".")}


def volumes(service: str) -> dict[str, str]:
    """The named volumes, by their paths in the container."""
    pairs = (volume.split(":")[:2] for volume in SERVICES[service].get("volumes", ()))
    return {inside: outside for outside, inside in pairs if not outside.startswith(".")}


def outside_of_containers(service: str, programs: dict[str, list[str]], state: Path) -> list[str] | None:
    """The service's command line on this machine; None: there is no program for it."""
    image = SERVICES[service]["image"].partition(":")[0]
    if image not in programs:
        return None
    command = [str(word) for word in SERVICES[service]["command"]]
    places = {inside: str(path) for inside, path in mounts(service).items()}
    places |= {inside: str(state / name) for inside, name in volumes(service).items()}
    words = [_placed(word, places) for word in command if word != "envoy"]
    return [*programs[image], *words]


def _placed(word: str, places: dict[str, str]) -> str:
    name, equals, path = word.rpartition("=")
    return name + equals + places.get(path, path)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", _IFF_UP))


async def _run(prometheus: str) -> dict[str, Any]:
    python = [sys.executable, "-c", ENTRY]
    programs = {
        "envoyproxy/envoy": [str(binary(SERVICES["envoy"]["image"].partition(":v")[2])), "--log-level", "error"],
        "vllm-extproc": python,
        "prom/prometheus": [prometheus, "--log.level=error"],
    }
    with tempfile.TemporaryDirectory() as folder:
        commands = {name: outside_of_containers(name, programs, Path(folder)) for name in SERVICES}
        started = [
            await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=sys.stderr, stderr=sys.stderr)
            for command in commands.values()
            if command
        ]
        try:
            async with aiohttp.ClientSession() as http:
                return {"left_out": [name for name, command in commands.items() if not command]} | await _seen(http)
        finally:
            for process in started:
                if process.returncode is None:
                    process.terminate()
            await asyncio.gather(*(process.wait() for process in started))


async def _seen(http: aiohttp.ClientSession) -> dict[str, Any]:
    """What somebody sees who follows the file's first lines and then looks around."""

    async def page(url: str) -> Any:
        try:
            async with http.get(url) as answer:
                return await answer.json(content_type=None) if answer.status == 200 else None
        except (aiohttp.ClientError, ValueError):
            return None

    async def states() -> dict[str, str] | None:
        status = await page("http://127.0.0.1:9003/status")
        found = {each["address"]: each["state"] for each in status["pools"]["vllm"]["endpoints"]} if status else {}
        return found if found and set(found.values()) == {"ready"} else None

    async def targets() -> list[str] | None:
        found = await page("http://127.0.0.1:9090/api/v1/targets")
        active = found["data"]["activeTargets"] if found else []
        return [each["scrapeUrl"] for each in active] if {each["health"] for each in active} == {"up"} else None

    async def answered() -> dict[str, Any] | None:
        """By a server that extproc has picked: before Envoy has seen it healthy, requests pass it by."""
        body = {"model": "sim", "messages": [{"role": "user", "content": "Hello"}]}
        try:
            async with http.post("http://127.0.0.1:8080/v1/chat/completions", json=body) as answer:
                said = {"status": answer.status, "server": answer.headers.get("x-vllm-sim")}
        except aiohttp.ClientError:
            return None
        picks = (await page("http://127.0.0.1:9003/status"))["requests"]["picks"]
        return said if picks else None

    states_seen = await eventually(states, "extproc sees all servers ready", timeout_s=PATIENCE_S)
    answer = await eventually(answered, "Envoy answers from a server that extproc picked", timeout_s=PATIENCE_S)
    scraped = await eventually(targets, "Prometheus has scraped", timeout_s=PATIENCE_S)
    rules = await page("http://127.0.0.1:9090/api/v1/rules")
    return {
        "states": states_seen,
        "answer": answer,
        "scraped": scraped,
        "alerts": [rule["name"] for group in rules["data"]["groups"] for rule in group["rules"]],
    }


if __name__ == "__main__":
    _loopback_up()
    sys.stdout.write(json.dumps(asyncio.run(_run(sys.argv[1]))))
