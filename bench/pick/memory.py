"""What does the index weigh?

Run as a program of its own, so that nothing else is weighed with it: `python -m bench.pick.memory BLOCKS`.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass

from bench.common.process import ROOT
from extproc.prefix.approximate import ApproximateIndex

ENDPOINTS = 64
LONG, SHORT = 200, 1  # blocks of a prompt: 100,000 tokens or so; as few as are indexed


@dataclass(frozen=True, slots=True)
class Weight:
    """Of an index that holds so many blocks, by tracemalloc."""

    blocks: int
    filled_bytes: int  # when it has just become full, with long prompts
    evicting_bytes: int  # when it has evicted as many blocks as it holds
    short_bytes: int  # likewise, with short ones: what a prompt takes beside its blocks counts most

    def mb_per_million(self, of_bytes: int) -> float:
        return of_bytes / self.blocks


def weigh(blocks: int) -> Weight:
    """In a process of its own. Raises subprocess.CalledProcessError."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.pick.memory", str(blocks)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return Weight(**json.loads(done.stdout))


def _weigh_here(blocks: int, prompt_blocks: int) -> tuple[int, int]:
    """Bytes when it has just become full, and when it has evicted as much."""
    rng = random.Random(2)
    index = ApproximateIndex(max_blocks=blocks)
    slots = [index.add_endpoint() for _ in range(ENDPOINTS)]
    gc.collect()
    tracemalloc.start()
    filled, number = 0, 0
    while index.stats().evicted_blocks < blocks:
        prompt = [rng.getrandbits(64) for _ in range(prompt_blocks)]
        index.insert(slots[number % ENDPOINTS], prompt, rng.getrandbits(64))
        number += 1
        if not filled and index.stats().evicted_blocks:
            filled = tracemalloc.get_traced_memory()[0]
    evicting = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return filled, evicting


def _main(blocks: int) -> dict[str, int]:
    filled, evicting = _weigh_here(blocks, LONG)
    gc.collect()
    few = max(1, blocks // 8)  # they take their time
    return {
        "blocks": blocks,
        "filled_bytes": filled,
        "evicting_bytes": evicting,
        "short_bytes": _weigh_here(few, SHORT)[1] * blocks // few,
    }


if __name__ == "__main__":
    print(json.dumps(_main(int(sys.argv[1]))))
