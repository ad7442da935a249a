"""The long proof: real processes on the real clock, `extproc calibrate` against `extproc vllm-sim`, with its defaults.

    python -m tests.calibrate [--seed N] [--max-lateness RATIO] [ENGINE...]

For each engine the knee that its constants imply, that which was found, and the difference; exit status 1 if one is
10 % or more. Takes ten minutes to half an hour an engine, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import fields
from pathlib import Path

from extproc.autoscale.profile import Profile
from extproc.sim.knee import between, knee
from extproc.sim.spec import CPU_TINY, EngineSpec
from tests.calibrate.worlds import SPEC
from tests.support.envoy_config import free_port

ENTRY = (sys.executable, "-c", "from extproc.cli import main; main()")
# The engine, its prompts and answers (tokens, uniform), the target in seconds.
ENGINES: dict[str, tuple[EngineSpec, tuple[int, int], tuple[int, int], float]] = {
    "small": (SPEC, (20, 180), (4, 12), 0.3),
    "cpu-tiny": (CPU_TINY, (100, 1500), (10, 60), 0.5),
}


def options(spec: EngineSpec) -> list[str]:
    """Of `vllm-sim`, for an engine of its own."""
    names = {"block_size_tokens": "block-size"}
    known = [field.name for field in fields(spec) if field.name not in ("reserve_full_prompt", "enable_prefix_caching")]
    return [
        text
        for name in known
        for text in (f"--{names.get(name, name.removesuffix('_ratio').replace('_', '-'))}", f"{getattr(spec, name):g}")
    ]


def measured(name: str, seed: int, max_lateness: float) -> tuple[float, float]:
    """The knee implied and the knee found. Raises CalledProcessError."""
    spec, prompts, answers, target_s = ENGINES[name]
    implied = knee(spec, between(prompts, answers), target_s, requests=20_000).knee_per_s
    port = free_port()
    server = subprocess.Popen([*ENTRY, "vllm-sim", "--port", str(port), "--log-level", "warning", *options(spec)])
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "profile.json"
            subprocess.run(
                [
                    *(*ENTRY, "calibrate", f"127.0.0.1:{port}", "--ttft-p99", f"{target_s}s", "--seed", str(seed)),
                    *("--prompt-tokens", "uniform:{}:{}".format(*prompts)),
                    *("--output-tokens", "uniform:{}:{}".format(*answers), "--out", str(out)),
                    *("--max-lateness", f"{max_lateness:g}"),
                ],
                check=True,
            )
            return implied, Profile.model_validate_json(out.read_bytes()).knee_per_s
    finally:
        server.terminate()
        server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=f"of {', '.join(ENGINES)}; all if none is named")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-lateness", type=float, default=0.1, help="as of the command; 0.1 is its default")
    given = parser.parse_args()
    unknown = set(given.engines) - set(ENGINES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(ENGINES)}")
    worst = 0.0
    for name in given.engines or ENGINES:
        implied, found = measured(name, given.seed, given.max_lateness)
        worst = max(worst, abs(found / implied - 1.0))
        sys.stdout.write(
            f"{name}: {implied:.3g} requests/s implied, {found:.3g} found ({found / implied - 1.0:+.1%})\n"
        )
    return int(worst >= 0.1)


if __name__ == "__main__":
    sys.exit(main())
