"""`make test-churn`: three minutes of churn under streams through real Envoy.

Writes bench/out/churn.json; the exit code is 1 if a must is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.churn.run import Churn, Options, Report, write
from tests.support.envoy_wheels import ROOT

OUT = ROOT / "bench" / "out" / "churn.json"


def show(report: Report) -> str:
    """The table of events, the errors with their causes, and the counts."""
    lines = ["", "  begin     end  event", "-------  ------  -----"]
    for each in report.events:
        end = "?" if each.to_s is None else f"{each.to_s:.1f}"
        lines.append(f"{each.from_s:7.1f} {end:>7}  {each.name}: {each.words}")
    if report.errors:
        lines += ["", f"{len(report.errors)} requests failed:"]
        lines += [
            f"{e['at_s']:7.1f}  {e['request']}: {e['event'] or 'UNEXPLAINED'}: {e['text']}" for e in report.errors
        ]
    found = report.as_json()
    lines += ["", *(f"{key}: {value}" for key, value in found.items() if not isinstance(value, list | dict))]
    lines += [f"MISSED: {each}" for each in report.missed] or ["all musts are met"]
    return "\n".join(lines)


async def churn(options: Options, folder: Path) -> Report:
    async with Churn(options, folder, say=partial(print, flush=True)) as run:
        return await run.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = Options()
    parser.add_argument("--seed", type=int, default=usual.seed, help="of the order of events and of the load (1)")
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="in which the events begin (180)")
    parser.add_argument("--events", type=int, default=usual.events, help="(30)")
    parser.add_argument("--streams", type=int, default=usual.streams, help="streams under way at any time (30)")
    parser.add_argument("--scale", type=float, default=usual.scale, help="1: streams of 5 to 60 s (0.25)")
    parser.add_argument("--quick", action="store_true", help="the service says goodbye faster than as shipped")
    parser.add_argument("--out", type=Path, default=OUT, help="the JSON file")
    parser.add_argument("--keep", type=Path, help="folder for all logs; default: one that is removed if all is well")
    given = parser.parse_args()
    options = Options(
        seed=given.seed,
        seconds=given.seconds,
        events=given.events,
        streams=given.streams,
        scale=given.scale,
        deadline_s=max(usual.deadline_s, 60 * given.scale * 2),
        quick=given.quick,
    )
    logging.basicConfig(level=logging.WARNING)
    folder = given.keep or Path(tempfile.mkdtemp(prefix="churn-"))
    folder.mkdir(parents=True, exist_ok=True)
    report = asyncio.run(churn(options, folder))
    write(report, given.out)
    sys.stdout.write(f"{show(report)}\nwrote {given.out}; logs in {folder}\n")
    sys.exit(1 if report.missed else 0)


if __name__ == "__main__":
    main()
