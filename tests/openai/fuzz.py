"""Feeds the path from a body to the index with broken, odd and hostile requests: no exception, and no pick lost.

python -m tests.openai.fuzz 1000000 [seed]
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import time
import zlib
from collections import Counter
from typing import Any

from extproc.affinity.ring import Ring
from extproc.openai.body import read_object
from extproc.openai.understand import understand
from extproc.prefix.approximate import ApproximateIndex
from extproc.prefix.turns import learn, match_prompt, prompt_blocks
from extproc.request import InferenceRequest, NoPrompt, RawRequest

PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/audio/transcriptions",
    "//x//v1/chat/completions/?a=b",
    "/v1/responses/resp_1",
    "/%zz/%63hat/completions",
    "",
    "*",
)
KEYS = (
    *("model", "messages", "prompt", "input", "role", "content", "type", "text", "tools", "tool_calls", "name", "id"),
    *("user", "conversation", "prompt_cache_key", "cache_salt", "stream", "max_tokens", "system", "instructions"),
    *("image_url", "url", "tool_result", "function_call", "previous_response_id", "reasoning_content", "x", ""),
)
TEXTS = (
    *("user", "assistant", "text", "input_text", "tool_result", "image_url", "function_call", "tool_use", "reasoning"),
    *(
        "",
        "hi",
        "é",
        "\ud83d",
        "\ude00x",
        "\x00",
        "😀",
        '","model":"evil',
        "a" * 300,
        "\\",
        "data:image/png;base64," + "A" * 1200,
    ),
)
HEADERS: tuple[dict[str, str], ...] = (
    *({},) * 20,
    {"content-type": "application/json"},
    {"content-type": "multipart/form-data; boundary=X"},
    {"content-type": "\udcff"},
    {"content-encoding": "gzip"},
    {"content-encoding": "deflate"},
    {"content-encoding": "zstd"},
    {"content-encoding": "br, gzip"},
    {"x-session": "s", "content-encoding": "identity"},
    {"x-session": "\udcff"},
)
SCALARS: tuple[Any, ...] = (None, True, False, 0, 1, -1, 2**31, 2**64, 10**40, 0.5, 1e300, float("nan"), float("inf"))


def value(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if depth <= 0 or kind < 0.25:
        return rng.choice(TEXTS)
    if kind < 0.4:
        return rng.choice(SCALARS)
    if kind < 0.7:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(KEYS): value(rng, depth - 1) for _ in range(rng.randrange(5))}


def likely(rng: random.Random) -> dict[str, Any]:
    """Nearly what a client sends."""
    turns = [
        {"role": rng.choice(TEXTS[:2]), "content": value(rng, 2) if rng.random() < 0.5 else rng.choice(TEXTS) * 20}
        for _ in range(rng.randrange(5))
    ]
    body: dict[str, Any] = {"model": "m", "messages": turns}
    if rng.random() < 0.6:
        body["input"] = turns if rng.random() < 0.5 else rng.choice(TEXTS)
        ids = [rng.randrange(128_000) for _ in range(rng.randrange(300))]
        body["prompt"] = rng.choice((ids, [ids, ids], [*ids, -1], [*ids, "x"], rng.choice(TEXTS), ["a", "b"]))
    if rng.random() < 0.5:
        body[rng.choice(KEYS)] = value(rng, 3)
    return body


def body_bytes(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.05:
        return rng.randbytes(rng.randrange(60))
    if kind < 0.08:
        opening = rng.choice((b"[", b'{"a":', b'{"messages":[', b'{"tools":[['))
        return b'{"messages":["x"],"x":' + opening * rng.randrange(3000)
    data = json.dumps(likely(rng) if kind < 0.7 else value(rng, 5), ensure_ascii=rng.random() < 0.7)
    text = data.encode(rng.choice(("utf-8",) * 8 + ("utf-16", "utf-8-sig")), "surrogatepass")
    if rng.random() < 0.2:  # flip, cut, double
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.randbytes(rng.randrange(3)) + text[at + rng.randrange(3) :]
    packing = rng.random()
    if packing < 0.05:
        return gzip.compress(text, 1)[: rng.choice((None, None, -3, 9))]
    return zlib.compress(text, 1) if packing < 0.1 else text


class Fuzz:
    """A small fleet and index behind the body path, so that eviction, forgetting and leaving happen all the time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.index = ApproximateIndex(max_blocks=2000)
        self.slots = [self.index.add_endpoint() for _ in range(9)]
        self.ring = Ring([str(slot) for slot in self.slots])
        self.reasons: Counter[str] = Counter()
        self.matched = 0
        self.sent: list[bytes] = [b""]  # some are sent again, or there would be nothing to match

    def one(self) -> None:
        rng = self.rng
        headers = dict(rng.choice(HEADERS))
        body = rng.choice(self.sent) if rng.random() < 0.3 else body_bytes(rng)
        self.sent = [body, *self.sent[:15]]
        raw = RawRequest("POST", rng.choice(PATHS), headers, body)
        request = understand(raw, session_headers=("x-session",))
        self.check(request)
        if request.no_prompt is NoPrompt.UNPARSABLE:  # so it is by its body, and not for a fault that was caught
            assert read_object(raw.body, raw.headers) is NoPrompt.UNPARSABLE
        self.reasons[request.no_prompt or "a prompt"] += 1
        blocks = prompt_blocks(request, model=request.model, block_bytes=16)
        mask = rng.randrange(1 << len(self.slots))
        matched = match_prompt(self.index, blocks, mask)
        for slot, units in matched.items():
            assert mask >> slot & 1
            assert 0 < units <= blocks.units
        self.matched += bool(matched)
        key = request.session_key or request.prompt[:64]
        slot = int(self.ring.preference(key, 1)[0])  # the pick: there always is one
        learn(self.index, slot, blocks)
        self.churn(slot)

    @staticmethod
    def check(request: InferenceRequest) -> None:
        assert (request.no_prompt is None) == bool(request.prompt)
        assert request.session_key != ""
        assert 0 <= request.generated_from <= request.generated_to <= len(request.prompt)
        for text in (request.model, request.session_key, request.cache_salt, request.response_id):
            assert text is None or text.encode()

    def churn(self, slot: int) -> None:
        chance = self.rng.random()
        if chance < 0.01:
            self.index.forget(slot)
        elif chance < 0.02:
            self.index.remove(slot)
            assert self.index.add_endpoint() == slot
        elif chance < 0.03:
            self.index.set_capacity(slot, self.rng.choice((None, 0, 10, 500)))
        stats = self.index.stats()
        assert stats.blocks + stats.leaving_blocks <= 2000

    def run(self, inputs: int) -> None:
        for _ in range(inputs):
            self.one()


def main() -> None:
    inputs = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    fuzz = Fuzz(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    start = time.perf_counter()
    fuzz.run(inputs)
    took = time.perf_counter() - start
    sys.stdout.write(f"{inputs} inputs, {inputs / took:.0f} a second, {fuzz.matched} with a match, no exception\n")
    sys.stdout.write(f"{dict(fuzz.reasons)}\n")


if __name__ == "__main__":
    main()
