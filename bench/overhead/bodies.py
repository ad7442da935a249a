"""Which request bodies are sent?

Valid chat completions of exactly the wanted size, all different. Each prompt is half a text that it shares with 15
others (a document, a system prompt) and half a text of its own, so routers that look for common prefixes find some.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

MODEL = "bench"
GROUP_SIZE = 16  # prompts that share their first half
_BUDGET_BYTES = 24 * 1024 * 1024  # of one file of bodies, which the load generator holds in memory
_WORDS_TEXT = """\
the of a request server token cache prefix block queue batch stream header pick load route host weight time that with
for under over between each after before model prompt answer window limit share first last long short"""
_WORDS = tuple(_WORDS_TEXT.split())


def body_count(size_bytes: int) -> int:
    """Distinct bodies of one size: 1,024, or as many groups as fit the memory budget."""
    return max(GROUP_SIZE, min(1024, _BUDGET_BYTES // size_bytes) // GROUP_SIZE * GROUP_SIZE)


def chat_body(size_bytes: int, index: int) -> bytes:
    """The `index`-th chat completion request, `size_bytes` long to the byte.

    Raises:
        ValueError: smaller than a request can be (512 bytes).
    """
    if size_bytes < 512:
        raise ValueError(f"a body of {size_bytes} bytes has no room for a prompt; use 512 or more")
    shared = _text(random.Random(f"shared {index // GROUP_SIZE}"), (size_bytes - 256) // 2)
    own = f" {index}: " + _text(random.Random(f"own {index}"), size_bytes)
    empty = _encode("")
    return _encode((shared + own)[: size_bytes - len(empty)])


def _encode(prompt: str) -> bytes:
    request = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": prompt},
        ],
        "max_tokens": 16,
        "temperature": 0,
    }
    return json.dumps(request, separators=(",", ":")).encode()


def _text(rng: random.Random, size_chars: int) -> str:
    words = rng.choices(_WORDS, k=size_chars // 3 + 1)  # with its space no word is shorter than 2, most are longer
    text = " ".join(words)
    while len(text) < size_chars:
        text += " " + " ".join(words)
    return text[:size_chars]


def write_bodies(path: Path, size_bytes: int) -> int:
    """Write all bodies of one size, one after the other, and say how many there are."""
    count = body_count(size_bytes)
    with path.open("wb") as out:
        for index in range(count):
            out.write(chat_body(size_bytes, index))
    return count
