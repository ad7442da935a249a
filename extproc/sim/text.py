"""Which tokens is a prompt made of, and what does the model answer?

There is no tokenizer: a token is four bytes. A chat is rendered to bytes in one canonical way, in which every message
begins at a token, so prompts that begin with the same messages begin with the same tokens; an answer is made of
four-byte words, so it has the same tokens when it comes back as a message of the next turn. Token ids are taken as four
bytes each. Blocks are hashed in a chain, seeded with the model and the cache salt, so equal hashes mean equal texts.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

BYTES_PER_TOKEN = 4
_HASH_MASK = (1 << 62) - 1
_WORDS = [a + b + c + " " for a in "bdfgklmnprstvz" for b in "aeiou" for c in "klmnprst"]


def _padded(text: bytes) -> bytes:
    """`text`, filled up to whole tokens."""
    return text + b" " * (-len(text) % BYTES_PER_TOKEN)


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _content(value: object) -> Iterable[bytes]:
    """A message's content: text as it is, other parts (images, audio) by their digest."""
    if isinstance(value, str):
        yield value.encode("utf-8", "surrogatepass")
    elif isinstance(value, list):
        for part in value:
            text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
            if isinstance(text, str):
                yield text.encode("utf-8", "surrogatepass")
            else:
                yield b"<|media|>" + blake2b(_canonical(part), digest_size=16).hexdigest().encode()
    elif value is not None:
        yield _canonical(value)


def render_chat(body: Mapping[str, Any]) -> bytes:
    """The prompt of a chat request: tools, then each message in order, then the head of the answer."""
    pieces: list[bytes] = []
    if body.get("tools"):
        pieces.append(_padded(b"<|tools|>" + _canonical(body["tools"])))
    for message in body["messages"]:
        head = f"<|{message.get('role', '')}|>{message.get('name') or ''}{message.get('tool_call_id') or ''}"
        pieces.append(_padded(head.encode("utf-8", "surrogatepass")))
        text = b"".join(_content(message.get("content")))
        if message.get("tool_calls"):
            text += b"<|calls|>" + _canonical(message["tool_calls"])
        pieces.append(_padded(text))
    pieces.append(_padded(b"<|assistant|>"))
    return b"".join(pieces)


def render_prompt(prompt: str | list[int]) -> bytes:
    """The prompt of a completion request: text, or token ids."""
    if isinstance(prompt, str):
        return _padded(prompt.encode("utf-8", "surrogatepass"))
    return array("I", [token & 0xFFFFFFFF for token in prompt]).tobytes()


def count_tokens(prompt: bytes) -> int:
    """Tokens of a rendered prompt."""
    return -(-len(prompt) // BYTES_PER_TOKEN)


def seed_hash(*names: str) -> int:
    """Where the chain of a model (and adapter, and cache salt) begins."""
    return int.from_bytes(blake2b("\0".join(names).encode(), digest_size=8).digest(), "big") & _HASH_MASK


def next_hash(parent: int, block: bytes) -> int:
    """The hash of a block that follows `parent`."""
    digest = blake2b(block, digest_size=8, key=parent.to_bytes(8, "big")).digest()
    return int.from_bytes(digest, "big") & _HASH_MASK


class Conversation:
    """A prompt and its answer: tokens, block hashes, words. The answer depends on the prompt and the seed alone."""

    __slots__ = ("_parts", "_rng", "_seed", "_tail", "block_bytes", "block_hashes", "prompt_tokens")

    def __init__(self, prompt: bytes, block_size_tokens: int, *, chain_seed: int, answer_seed: int = 0) -> None:
        self.prompt_tokens = count_tokens(prompt)
        self.block_bytes = size = block_size_tokens * BYTES_PER_TOKEN
        hashes: list[int] = []
        parent = chain_seed
        full = len(prompt) // size * size
        for start in range(0, full, size):
            parent = next_hash(parent, prompt[start : start + size])
            hashes.append(parent)
        self.block_hashes = hashes
        self._seed = chain_seed
        self._tail = prompt[full:]
        self._rng = random.Random(next_hash(parent, self._tail) ^ answer_seed)
        self._parts: list[str] = []

    def word(self, index: int) -> str:
        """The text of the answer's token `index`."""
        parts = self._parts
        while len(parts) <= index:
            parts += self._rng.choices(_WORDS, k=16)
        return parts[index]

    def words(self, start: int, stop: int) -> str:
        """The text of the answer's tokens from `start` up to `stop`."""
        if stop > start:
            self.word(stop - 1)
        return "".join(self._parts[start:stop])

    def answer_hash(self, index: int, parent: int) -> int:
        """The hash of block `index` of prompt and answer, for blocks that the prompt alone does not fill."""
        block_tokens = self.block_bytes // BYTES_PER_TOKEN
        first = len(self.block_hashes)
        start = (index - first) * block_tokens - len(self._tail) // BYTES_PER_TOKEN  # in tokens of the answer
        text = self.words(max(0, start), start + block_tokens).encode()
        return next_hash(parent if index else self._seed, self._tail + text if index == first else text)
