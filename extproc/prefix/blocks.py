"""How are prompts cut into blocks that can be compared by a number?

A block's hash takes in the hash before it, so equal hashes mean equal *beginnings*, not only equal blocks. The chain
starts from a root of everything that keeps the servers' caches apart: model, adapter, cache salt, and the size of the
blocks. vLLM keys its own prefix cache alike (`vllm.v1.core.kv_cache_utils.hash_block_tokens`).

Blocks get longer along the prompt: 1 unit each for 64 of them, then 4 for 112, then 16, where a unit is `block_bytes`
long and stands for 64 tokens. So what is not seen of a match is at most 64 tokens of the first 4,096, and a sixteenth
beyond: there it does not matter, and looking up and indexing a prompt of 100,000 tokens costs a sixth. Where the
blocks begin is the same for all prompts. (Longer blocks from the start cost siblings of short prefixes their match:
simulated, W6, two units from the ninth block on: p90 950 ms for 845.)

Hashes have 64 bits: with a million blocks held, a false match on one look-up has a chance of 5 in 10^14; it costs
time, never a wrong answer, since the server looks up for itself.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate

from xxhash import xxh3_64_intdigest

# 64 tokens at 4 bytes a token, a common mean for English and code.
BLOCK_BYTES = 256
# How many blocks of how many units. In all 10,496 units: 2.7 MB of prompt, more than a body that is read can have.
LADDER = ((64, 1), (112, 4), (624, 16))
BLOCK_UNITS = tuple(units for count, units in LADDER for _ in range(count))  # by position in the chain
MAX_BLOCKS = len(BLOCK_UNITS)
_SHORT = 512  # characters of a name that is remembered: it is the client's text
UNITS_UP_TO = tuple(accumulate(BLOCK_UNITS, initial=0))  # by how many leading blocks of a chain


def units_of(blocks: int) -> int:
    """Units in so many leading blocks of a chain."""
    return UNITS_UP_TO[min(blocks, MAX_BLOCKS)]


def blocks_within(units: int) -> int:
    """The most leading blocks of a chain that have no more units than these."""
    return bisect_right(UNITS_UP_TO, units) - 1


def root_of(*, model: str | None, adapter: str | None, salt: str | None, block_bytes: int = BLOCK_BYTES) -> int:
    """What the first block's hash takes in. The salt cannot be read back from it."""
    if salt is None and len(model or "") + len(adapter or "") < _SHORT:
        return _unsalted_root(model, adapter, block_bytes)
    return _root(model, adapter, salt, block_bytes)


@lru_cache(maxsize=256)
def _unsalted_root(model: str | None, adapter: str | None, block_bytes: int) -> int:
    return _root(model, adapter, None, block_bytes)  # salts are not kept


def _root(model: str | None, adapter: str | None, salt: str | None, block_bytes: int) -> int:
    digest = blake2b(digest_size=8)
    digest.update(struct.pack("<I", block_bytes))
    for part in (model, adapter, salt):
        data = b"" if part is None else part.encode("utf-8", "backslashreplace")
        digest.update(struct.pack("<q", -1 if part is None else len(data)))  # so that no two triples run together
        digest.update(data)
    return int.from_bytes(digest.digest(), "little")


@lru_cache(maxsize=256)
def _cutter(block_bytes: int) -> Callable[[bytes], Iterator[tuple[bytes]]]:
    return struct.Struct(f"{block_bytes}s").iter_unpack


def chain(prompt: bytes, root: int, *, block_bytes: int = BLOCK_BYTES, max_blocks: int = MAX_BLOCKS) -> list[int]:
    """The hashes of the prompt's full blocks, first to last; what is left over at the end has none.

    Raises:
        ValueError: a block size below 1.
    """
    if block_bytes < 1:
        raise ValueError(f"block_bytes {block_bytes} must be at least 1")
    hashes: list[int] = []
    before, at = root, 0
    for count, units in LADDER:
        size = units * block_bytes
        full = min(count, max_blocks - len(hashes), (len(prompt) - at) // size)
        part = prompt[at : at + full * size]
        hashes += [before := xxh3_64_intdigest(block, before) for (block,) in _cutter(size)(part)]
        at += full * size
        if full < count:
            break
    return hashes


def block_hashes(
    prompt: bytes,
    *,
    model: str | None,
    adapter: str | None = None,
    salt: str | None = None,
    block_bytes: int = BLOCK_BYTES,
    max_blocks: int = MAX_BLOCKS,
) -> list[int]:
    """`chain` from the root of these."""
    root = root_of(model=model, adapter=adapter, salt=salt, block_bytes=block_bytes)
    return chain(prompt, root, block_bytes=block_bytes, max_blocks=max_blocks)


def end_mark(prompt: bytes, end: int, hashes: list[int], root: int, *, block_bytes: int = BLOCK_BYTES) -> int | None:
    """The hash of exactly `prompt[:end]`, the part of a block at its end included. `hashes` and `root` are its chain's.

    None when the chain was cut off before that point.
    """
    full = blocks_within(end // block_bytes)
    if full > len(hashes) or full == MAX_BLOCKS:
        return None
    return xxh3_64_intdigest(prompt[units_of(full) * block_bytes : end], hashes[full - 1] if full else root)
