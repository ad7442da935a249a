"""Which servers does the autoscaling demo start, by which command, and what can one of them have?

The command is a shell script, as an operator would write one: it starts and stops simulated vLLM servers on this
machine, and keeps the list that the service watches. What one server can have was found by the load test in virtual
time: `python -m extproc.cli._demo_autoscale_fleet` makes `_demo_autoscale_profile.json` again.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from extproc.autoscale.profile import Profile
from extproc.cli._demo_config import HOST
from extproc.cli._demo_fleet import MODEL
from extproc.sim.knee import between, knee
from extproc.sim.spec import A100_8B

NAME = "server"
COLD_START_S = 10.0
TTFT_P99_S = 1.0
PROMPT_TOKENS = (200, 600)
ANSWER_TOKENS = (60, 140)
_PRESET = "a100-8b"
_SLOW = 2.0  # half of that card
# Few places, so that a handful of requests a second is a load for several servers.
_LIMITS = {"max_num_seqs": 8, "num_gpu_blocks": 1537, "max_model_len": 16_384}
_JITTER = 0.1
SPEC = replace(A100_8B.slowed(_SLOW), **_LIMITS, jitter_ratio=_JITTER)  # type: ignore[arg-type]

LIST = "servers.yaml"
SCRIPT = """\
#!/bin/sh
# The fleet of the demo, for `extproc scale`: "fleet.sh start" starts a simulated vLLM server and prints its address,
# "fleet.sh stop HOST:PORT" stops it. Those that run are in servers.yaml, which the service watches.
set -eu
cd "$(dirname "$0")"

list() {{
  for file in *.pid; do
    [ -e "$file" ] && echo "- {host}:${{file%.pid}}"
  done >servers.yaml.new
  [ -s servers.yaml.new ] || echo "[]" >servers.yaml.new
  mv servers.yaml.new servers.yaml
}}

runs() {{
  grep -qs '^State:[[:space:]]*[^Z]' "/proc/$1/status"
}}

case "$1" in
start)
  for port in {ports} none; do
    [ -e "$port.pid" ] || break
  done
  [ "$port" != none ] || {{ echo "no port is left" >&2; exit 1; }}
  nohup {server} --port "$port" >"$port.log" 2>&1 </dev/null &
  echo $! >"$port.pid"
  list
  echo "{host}:$port"
  ;;
stop)
  port=${{2##*:}}
  [ -e "$port.pid" ] || exit 0            # gone already: as wanted
  pid=$(cat "$port.pid")
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 100); do
    runs "$pid" || break
    sleep 0.1
  done
  ! runs "$pid" || {{ echo "it does not end" >&2; exit 1; }}
  rm -f "$port.pid"
  list
  ;;
*)
  echo "usage: fleet.sh start | stop HOST:PORT" >&2
  exit 2
  ;;
esac
"""


def profile_path() -> Path:
    """Of the load test."""
    return Path(str(files("extproc"))) / "cli" / "_demo_autoscale_profile.json"


def make_profile(made_at: str) -> Profile:
    """The load test of one server, in virtual time."""
    lengths = between(PROMPT_TOKENS, ANSWER_TOKENS)
    found = knee(SPEC, lengths, TTFT_P99_S, made_at=made_at)
    return found.model_copy(update={"server": found.server.model_copy(update={"model": MODEL, "engine": "vllm"})})


def server_command() -> list[str]:
    """That runs one server, but for its port."""
    limits = [part for name, value in _LIMITS.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    installed = Path(sys.executable).with_name("extproc")
    entry = [str(installed)] if installed.exists() else [sys.executable, "-c", "from extproc.cli import main; main()"]
    return [
        *(*entry, "vllm-sim", "--host", HOST, "--name", NAME, "--model", MODEL),
        *("--preset", _PRESET, "--slow-factor", f"{_SLOW:g}", *limits, "--jitter", f"{_JITTER:g}"),
        *("--cold-start", f"{COLD_START_S:g}", "--shutdown-timeout", "30", "--log-level", "warning"),
    ]


def write_script(folder: Path, ports: Sequence[int]) -> Path:
    """Write the command and an empty list of servers."""
    script = folder / "fleet.sh"
    script.write_text(
        SCRIPT.format(host=HOST, ports=" ".join(map(str, ports)), server=shlex.join(server_command())), encoding="utf-8"
    )
    script.chmod(0o755)
    (folder / LIST).write_text("[]\n", encoding="utf-8")
    return script


def kill_all(folder: Path) -> None:
    """End every server that still runs. Waits a little for each."""
    pids = [int(text) for file in folder.glob("*.pid") if (text := file.read_text().strip()).isdigit()]
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for _ in range(100):
        if not any(_runs(pid) for pid in pids):
            return
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "\nState:\tZ" not in status


if __name__ == "__main__":
    made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    profile_path().write_text(make_profile(made_at).model_dump_json(indent=1) + "\n", encoding="utf-8")
