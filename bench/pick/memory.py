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
_CHAIN = 200


@dataclass(frozen=True, slots=True)
class Weight:
    """Of an index that holds so many blocks, by tracemalloc."""

    blocks: int
    filled_bytes: int  # when it has just become full
    evicting_bytes: int  # when it has evicted as many blocks as it holds

    def mb_per_million(self, of_bytes: int) -> float:
        return of_bytes / self.blocks


def weigh(blocks: int) -> Weight:
    """In a process of its own. Raises subprocess.CalledProcessError."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.pick.memory", str(blocks)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return Weight(**json.loads(done.stdout))


def _weigh_here(blocks: int) -> dict[str, int]:
    rng = random.Random(2)
    index = ApproximateIndex(max_blocks=blocks)
    slots = [index.add_endpoint() for _ in range(ENDPOINTS)]
    gc.collect()
    tracemalloc.start()
    filled, number = 0, 0
    while index.stats().evicted_blocks < blocks:
        index.insert(slots[number % ENDPOINTS], [rng.getrandbits(64) for _ in range(_CHAIN)])
        number += 1
        if not filled and index.stats().evicted_blocks:
            filled = tracemalloc.get_traced_memory()[0]
    return {"blocks": blocks, "filled_bytes": filled, "evicting_bytes": tracemalloc.get_traced_memory()[0]}


if __name__ == "__main__":
    print(json.dumps(_weigh_here(int(sys.argv[1]))))
