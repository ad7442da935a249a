"""What does docs/benchmarks/pick.md say? All but the part below its marker comes from the run."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Sequence
from importlib import metadata

from bench.common import machine
from bench.pick import report
from bench.pick.measure import Row
from bench.pick.memory import ENDPOINTS, LONG, SHORT, Weight

BUSY_RATIO = 0.1  # of the machine's CPU, taken by others: above that the run should be repeated

METHOD = """\
- The code is the service's own: `parse` reads the body (`understand`), `hash` cuts the prompt into blocks, `match` asks
  the index who holds how many, `cost` estimates the time to first token everywhere, `pick` filters before that and
  chooses after it, `reserve` takes the place on the server. `total` is `Router.route` as a whole, measured by itself on
  other requests; it includes a sampled decision log's entry where one is due. That is what an answer waits for, and
  what the verdict is about.
- `learn` is `Router.settle`: the index learns what the server will hold, and drops as much. The service does that when
  the answer is on its way. The CPU of a request is `total` and `learn`; where requests come so close that the next one
  is there before that, the next one waits for it.
- Profile `cache-aware`. Every server has a fresh sample and four requests of ours in flight; a request comes each
  millisecond. The index is full, so each new prompt evicts as much as it adds. No two requests are alike; half of each
  prompt is shared and held by all servers to different depths.
- Times are of the thread's CPU (`time.thread_time`), so another process that takes the core is not counted; what it
  does to the caches and to the clock rate is. Each figure is a median, with the least in brackets.
- The collector is set as in `extproc serve`."""


def render(rows: Sequence[Row], weight: Weight | None, others_ratio: float, command: str) -> str:
    """The page's generated part, Markdown. `others_ratio`: of the machine's CPU, what other processes took."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    busy = f"Other processes took {others_ratio:.0%} of the machine's CPU meanwhile."
    if others_ratio > BUSY_RATIO:
        busy += " **That disturbs the figures: they are slower than on a quiet machine; run it again.**"
    parts = [
        "# What a pick costs",
        "From a decoded request to the chosen servers, in µs of CPU, without gRPC and without Envoy"
        " ([overhead.md](overhead.md) has the whole path).",
        f"Measured on {today}. Reproduce with `{command}`.",
        f"- {machine.cores()} cores ({machine.processor()}), Linux {platform.release()}\n"
        f"- Python {platform.python_version()}, orjson {metadata.version('orjson')},"
        f" xxhash {metadata.version('xxhash')}\n- {busy}",
        "## Verdict",
        "\n".join(f"- {verdict}" for verdict in report.verdicts(rows)),
        "## Results",
        f"With {max(row.indexed_blocks for row in rows):,} blocks indexed."
        " The answer waits for `total`, not for `learn`.",
        report.table(rows),
    ]
    if weight is not None:
        parts += [
            "## Memory",
            f"A million indexed blocks take {weight.mb_per_million(weight.filled_bytes):.0f} MB when the index has just"
            f" become full, and {weight.mb_per_million(weight.evicting_bytes):.0f} MB once it has evicted as many as it"
            f" holds, in prompts of {LONG} blocks ({weight.blocks:,} blocks over {ENDPOINTS} endpoints, tracemalloc)."
            f" In prompts of {SHORT} block each, the shortest that are indexed, it would be"
            f" {weight.mb_per_million(weight.short_bytes):.0f} MB.",
        ]
    parts += ["## How it was measured", METHOD]
    return "\n\n".join(parts) + "\n"
