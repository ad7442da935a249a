"""What do the parts of a pick cost, and what does the index weigh?

    python -m bench.pick_parts [--endpoints 64] [--blocks 1000000]

Rows of stage, size of the body and microseconds: the minimum over many short runs, for a machine that is shared.
`insert` is of a new prompt into a full index, so it evicts as much as it adds.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import orjson

from extproc.affinity.ring import Ring
from extproc.openai.understand import understand
from extproc.prefix.approximate import ApproximateIndex
from extproc.prefix.turns import learn, match_prompt, prompt_blocks
from extproc.request import RawRequest

WORDS = ("the", "of", "prompt", "server", "cache", "request,", "token", "because", "routing.", "\n")
PATH = "/v1/chat/completions"


def best_us(call: Callable[[], object], seconds: float = 0.4) -> float:
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def chat(size: int, seed: int) -> bytes:
    rng = random.Random(seed)
    text = " ".join(rng.choices(WORDS, k=size // 5))[: size - 120]
    messages = [{"role": "system", "content": text[: size // 2]}, {"role": "user", "content": text[size // 2 :]}]
    return orjson.dumps({"model": "m", "messages": messages, "stream": True})


def filled(endpoints: int, blocks: int, rng: random.Random) -> ApproximateIndex:
    index = ApproximateIndex(max_blocks=blocks)
    slots = [index.add_endpoint() for _ in range(endpoints)]
    number = 0
    while index.stats().blocks < blocks:
        index.insert(slots[number % endpoints], [rng.getrandbits(64) for _ in range(200)])
        number += 1
    return index


def weigh(blocks: int) -> None:
    """Bytes per block and holder: while the index fills, and when it has evicted as much as it holds."""
    gc.collect()
    rng = random.Random(2)
    index = ApproximateIndex(max_blocks=blocks)
    slots = [index.add_endpoint() for _ in range(64)]
    tracemalloc.start()
    start = tracemalloc.get_traced_memory()[0]
    filling, number = [], 0
    while index.stats().evicted_blocks < blocks:
        index.insert(slots[number % 64], [rng.getrandbits(64) for _ in range(200)])
        number += 1
        if number % 100 == 0 and not index.stats().evicted_blocks and index.stats().blocks > blocks / 10:
            filling.append((tracemalloc.get_traced_memory()[0] - start) / index.stats().blocks)
    full = (tracemalloc.get_traced_memory()[0] - start) / index.stats().blocks
    tracemalloc.stop()
    print(f"bytes a block and holder: {min(filling):.0f} to {max(filling):.0f} filling, {full:.0f} full and evicting")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    options = parser.parse_args()
    rng = random.Random(1)
    index = filled(options.endpoints, options.blocks, rng)
    gc.collect()
    gc.freeze()
    everyone = (1 << options.endpoints) - 1
    print(f"{options.endpoints} endpoints, {index.stats().blocks} blocks indexed")
    print(f"{'stage':12}{'body bytes':>12}{'us':>10}")
    for size in (4_000, 40_000, 400_000):
        raw = RawRequest("POST", PATH, {"content-type": "application/json"}, chat(size, size))
        request = understand(raw)
        blocks = prompt_blocks(request, model="m")
        shared = blocks.hashes[: len(blocks.hashes) // 2]
        for slot in range(options.endpoints):
            index.insert(slot, shared[: 1 + slot * len(shared) // options.endpoints])
        fresh = iter(range(1 << 30))

        inserts: list[float] = []

        def insert_new(request=request, fresh=fresh, inserts=inserts) -> None:  # type: ignore[no-untyped-def]
            number = next(fresh)
            new = prompt_blocks(replace(request, cache_salt=str(number)), model="m")
            start = time.perf_counter()
            learn(index, number % options.endpoints, new)
            inserts.append(time.perf_counter() - start)

        rows = {
            "understand": best_us(lambda raw=raw: understand(raw)),  # type: ignore[misc]
            "hash": best_us(lambda request=request: prompt_blocks(request, model="m")),  # type: ignore[misc]
            "match": best_us(lambda blocks=blocks: match_prompt(index, blocks, everyone)),  # type: ignore[misc]
            "insert again": best_us(lambda blocks=blocks: learn(index, 0, blocks)),  # type: ignore[misc]
        }
        best_us(insert_new)
        rows["insert"] = min(inserts) * 1e6
        rows["sum"] = rows["understand"] + rows["hash"] + rows["match"] + rows["insert"]
        for stage, us in rows.items():
            print(f"{stage:12}{size:12}{us:10.1f}")
    ring = Ring([f"10.0.{n // 250}.{n % 250}:8000" for n in range(options.endpoints)])
    keys = iter(range(1 << 30))
    print(f"{'ring, 3':12}{'':12}{best_us(lambda: ring.preference(str(next(keys)), 3)):10.1f}")
    print(f"{'ring, all':12}{'':12}{best_us(lambda: ring.preference(str(next(keys)))):10.1f}")
    names = [f"10.0.{n // 250}.{n % 250}:8000" for n in range(options.endpoints + 1)]

    def flip() -> None:
        ring.update(names)
        ring.update(names[:-1])

    print(f"{'ring, change':12}{'':12}{best_us(flip) / 2:10.1f}")
    weigh(min(options.blocks, 400_000))


if __name__ == "__main__":
    main()
