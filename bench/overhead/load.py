"""How is load made and measured? `wrk`, closed loop, with a script that rotates over prepared bodies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.common.process import ArmFailedError

# wrk's own report rounds; done() has the whole distribution. Requests are formatted once, so that sending one costs the
# generator a table lookup.
SCRIPT = """
local requests, count, next_index = {}, 0, 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  local size = tonumber(args[2])
  local headers = {["content-type"] = "application/json"}
  while true do
    local body = file:read(size)
    if not body then break end
    count = count + 1
    requests[count] = wrk.format("POST", "/v1/chat/completions", headers, body)
  end
  file:close()
end

function request()
  next_index = next_index % count + 1
  return requests[next_index]
end

function done(summary, latency, _)
  local e = summary.errors
  io.write(string.format(
    '\\n{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,' ..
    '"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect, e.read, e.write, e.status, e.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One window of load as the client saw it."""

    requests: int
    duration_s: float
    p50_ms: float
    p99_ms: float
    bad_status: int  # answers with 400 or above
    socket_errors: int  # connect, read, write, timeout

    @property
    def rps(self) -> float:
        return self.requests / self.duration_s


def parse_result(output: str) -> LoadResult:
    """Read what the script's done() wrote.

    Raises:
        ValueError: no such line, no request finished, or no time passed.
    """
    lines = [line for line in output.splitlines() if line.startswith('{"requests"')]
    if not lines:
        raise ValueError(f"wrk gave no result:\n{output}")
    fields = json.loads(lines[-1])
    if fields["requests"] <= 0 or fields["duration_us"] <= 0:
        raise ValueError(f"wrk finished no request: {lines[-1]}")
    return LoadResult(
        requests=fields["requests"],
        duration_s=fields["duration_us"] / 1e6,
        p50_ms=fields["p50_us"] / 1e3,
        p99_ms=fields["p99_us"] / 1e3,
        bad_status=fields["status"],
        socket_errors=fields["connect"] + fields["read"] + fields["write"] + fields["timeout"],
    )


def run_load(
    arm: str, port: int, bodies: Path, size_bytes: int, concurrency: int, seconds: int, script: Path
) -> LoadResult:
    """Send for `seconds` over `concurrency` connections, from one thread (it sends ten times what any arm answers).

    Raises:
        ArmFailedError: an answer other than 2xx or 3xx, a socket error, or no answer at all.
    """
    command = ["wrk", "-t1", f"-c{concurrency}", f"-d{seconds}s", "--timeout", "10s", "-s", str(script)]
    command += [f"http://127.0.0.1:{port}", "--", str(bodies), str(size_bytes)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    except subprocess.TimeoutExpired as error:
        raise ArmFailedError(f"{arm}: the load generator did not end within a minute after its window") from error
    try:
        result = parse_result(done.stdout)
    except ValueError as error:
        raise ArmFailedError(f"{arm}: {error}\n{done.stderr}") from error
    if result.bad_status or result.socket_errors:
        raise ArmFailedError(
            f"{arm}: of {result.requests} answers at {size_bytes} bytes, concurrency {concurrency}, {result.bad_status}"
            f" had a status of 400 or above, and {result.socket_errors} requests had socket errors"
        )
    return result


def ensure_wrk(say: Callable[[str], object]) -> str:
    """The installed wrk's version; installs Debian's package where that is possible and says so.

    Raises:
        RuntimeError: wrk is not there and cannot be installed from here; the message tells how.
    """
    if shutil.which("wrk") is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise RuntimeError(
                "the load generator `wrk` is missing; install it with your system's package manager"
                " (Debian, Ubuntu: `sudo apt-get install wrk`; macOS: `brew install wrk`)"
            )
        say("wrk is missing: installing it (apt-get update; apt-get install --yes wrk)")
        subprocess.run(["apt-get", "update", "-qq"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["apt-get", "install", "--yes", "-qq", "wrk"], check=True, stdout=subprocess.DEVNULL)
    first = subprocess.run(["wrk", "-v"], capture_output=True, text=True, check=False).stdout.split()
    return first[1] if len(first) > 1 else "unknown"
