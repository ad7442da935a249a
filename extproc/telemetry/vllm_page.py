"""What does a vLLM metrics page say about the load of its server?

`PageReader` takes the page in pieces as they arrive and keeps only the series it wants, so neither memory nor one step
on the event loop grows with the page; `parse` reads a whole page. Neither raises, whatever the bytes. Measured on the
recorded 50 KB page: 0.8 ms, where `prometheus_client.parser` takes 10 ms and gives up the page at its first bad line;
at 64 servers and 2 Hz that is 0.1 of a core against 1.3 (docs/decisions/own-metrics-line-parser.md).

The rules, for every value:

- A series that is absent is unknown (None), never 0. Names are looked for newest first, counters with and without
  `_total`; an older name counts only where no newer one gives a value.
- Over data-parallel engines and models, counts and histograms are summed and KV usage is averaged.
- A value that its metric cannot have (NaN, infinite, negative, KV usage above 1, `1_000`), a malformed line, and two
  lines that contradict each other make the sum they belong to unknown, and count in `rejected_values`. A sum of the
  rest would show the server better than it is. All other series of the page are used.
- Of a page that was cut off, the last line and a metric that may go on after the cut are left out.
- The order of the lines does not matter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from extproc.pool.sample import Histogram, LoadSample
from extproc.telemetry import histogram
from extproc.telemetry.exposition import Labels, name_of, read_sample

RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)  # deferred ones included; not to be added: ..._waiting_by_reason
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
SLEEP_STATE = "vllm:engine_sleep_state"
CACHE_CONFIG = "vllm:cache_config_info"
LORA_INFO = "vllm:lora_requests_info"
PROCESS_START = "process_start_time_seconds"


def _counter(*bases: str) -> tuple[str, ...]:
    return tuple(base + suffix for base in bases for suffix in ("_total", ""))


PREFIX_QUERIES = _counter("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries")
PREFIX_HITS = _counter("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits")
PROMPT_TOKENS = _counter("vllm:prompt_tokens")
CACHED_PROMPT_TOKENS = _counter("vllm:prompt_tokens_cached")
GENERATION_TOKENS = _counter("vllm:generation_tokens")
PREEMPTIONS = _counter("vllm:num_preemptions")
TTFT = ("vllm:time_to_first_token_seconds",)
TOKEN_INTERVAL = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
PREFILL = ("vllm:request_prefill_time_seconds",)
QUEUE = ("vllm:request_queue_time_seconds",)

_COUNTERS = (PREFIX_QUERIES, PREFIX_HITS, PROMPT_TOKENS, CACHED_PROMPT_TOKENS, GENERATION_TOKENS, PREEMPTIONS)
_SINGLE = (*RUNNING, *WAITING, *KV_USAGE, SLEEP_STATE, CACHE_CONFIG, LORA_INFO, PROCESS_START)
_BUCKET, _SUM = "_bucket", "_sum"
_WANTED = {
    name.encode(): name
    for name in (
        *_SINGLE,
        *(name for names in _COUNTERS for name in names),
        *(
            base + suffix
            for bases in (TTFT, TOKEN_INTERVAL, PREFILL, QUEUE)
            for base in bases
            for suffix in (_BUCKET, _SUM)
        ),
    )
}
_STARTS = (b"vllm:", b"process_start", b" ", b"\t")  # what a wanted line can begin with
_AT_MOST = {**dict.fromkeys(KV_USAGE, 1.0), SLEEP_STATE: 1.0}  # all others: finite
_FAMILY = re.compile(rb"_(bucket|sum|count)$")

MAX_LINE_BYTES = 32 * 1024  # a wanted line of a real page has under 2 KB (cache_config_info)
MAX_ROWS = 10_000  # wanted lines of one page; eight engines have 1,100
_STEP_BYTES = 64 * 1024


def parse(page: bytes, taken_at_s: float, *, truncated: bool = False) -> LoadSample:
    """Read a whole page. `taken_at_s`: when it was asked for, monotonic; `truncated`: the page went on."""
    reader = PageReader()
    for start in range(0, len(page), _STEP_BYTES):
        reader.feed(page[start : start + _STEP_BYTES])
    return reader.finish(taken_at_s, truncated=truncated)


class PageReader:
    """One page, fed in pieces. Keeps at most MAX_ROWS parsed lines and one line of MAX_LINE_BYTES."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[Labels, float]] = {}
        self._row_count = 0
        self._spoilt: set[str] = set()  # names with a line that could not be used
        self._conflicts: set[tuple[str, Labels]] = set()
        self._rejected = 0
        self._overflowed = False
        self._rest = b""  # of the line that has not ended yet; its beginning, while `_skipping`
        self._skipping = False
        self._last_line = b""

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the page. Costs time in proportion to the piece, whatever came before."""
        if self._skipping:
            end = piece.find(b"\n")
            if end < 0:
                return
            self._skipping = False
            self._last_line, self._rest = self._rest, b""
            piece = piece[end + 1 :]
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(_STARTS):
                self._take(line)
        if lines:
            self._last_line = lines[-1]
        if len(self._rest) > MAX_LINE_BYTES:
            self._take(self._rest)
            self._skipping = True
            self._rest = self._rest[:256]  # enough to know its name

    def finish(self, taken_at_s: float, *, truncated: bool = False) -> LoadSample:
        """The sample. Call it once, after the last piece."""
        if truncated:
            self._leave_out_the_cut_metric()
        elif self._rest and not self._skipping:
            self._take(self._rest)
        kv_usage = self._complete(KV_USAGE)
        block_size, blocks = self._cache_config()
        ttft, token_interval = self._histogram(TTFT), self._histogram(TOKEN_INTERVAL)
        prefill, queue = self._histogram(PREFILL), self._histogram(QUEUE)
        start = self._complete((PROCESS_START,))
        return LoadSample(
            taken_at_s=taken_at_s,
            running=self._total(RUNNING),
            waiting=self._total(WAITING),
            kv_usage_ratio=math.fsum(kv_usage.values()) / len(kv_usage) if kv_usage else None,
            sleeping=self._sleeping(),
            block_size_tokens=block_size,
            kv_blocks=blocks,
            engines=len(self._label_values("engine", (*RUNNING, *WAITING, *KV_USAGE))),
            models=tuple(sorted(self._label_values("model_name", self._rows) - {""})),
            adapters=self._adapters(),
            prefix_queries_tokens=self._total(PREFIX_QUERIES),
            prefix_hits_tokens=self._total(PREFIX_HITS),
            prompt_tokens=self._total(PROMPT_TOKENS),
            cached_prompt_tokens=self._total(CACHED_PROMPT_TOKENS),
            generation_tokens=self._total(GENERATION_TOKENS),
            preemptions=self._total(PREEMPTIONS),
            ttft=ttft,
            token_interval=token_interval,
            prefill=prefill,
            queue=queue,
            process_start_s=max(start.values()) if start else None,
            rejected_values=self._rejected + len(self._conflicts),
            truncated=truncated or self._overflowed,
        )

    def _take(self, line: bytes) -> None:
        name = _WANTED.get(name_of(line))
        if name is None:
            return
        if self._row_count >= MAX_ROWS:
            self._overflowed = True
            self._spoilt.add(name)
            return
        sample = read_sample(line) if len(line) <= MAX_LINE_BYTES else None
        if sample is None or not 0 <= sample[1] <= _AT_MOST.get(name, math.inf) or sample[1] == math.inf:
            self._rejected += 1
            self._spoilt.add(name)
            return
        labels, value = sample
        if self._rows.setdefault(name, {}).setdefault(labels, value) != value:
            self._conflicts.add((name, labels))
            self._spoilt.add(name)
        self._row_count += 1

    def _leave_out_the_cut_metric(self) -> None:
        """A metric's lines stand together; if the line that was cut off is of the last one, more of it is missing."""
        last, cut = (_FAMILY.sub(b"", name_of(line)) for line in (self._last_line, self._rest))
        another = self._rest.startswith(b"#") or (cut != last and (b"{" in self._rest or b" " in self._rest))
        if not another:
            base = last.decode()
            self._spoilt.update((base, base + _BUCKET, base + _SUM))

    def _complete(self, names: Sequence[str]) -> Mapping[Labels, float] | None:
        """The rows of the first of `names` that is on the page with nothing but good values."""
        return next((self._rows[name] for name in names if name in self._rows and name not in self._spoilt), None)

    def _total(self, names: Sequence[str]) -> float | None:
        rows = self._complete(names)
        return histogram.finite_sum(rows.values()) if rows else None

    def _histogram(self, bases: Sequence[str]) -> Histogram | None:
        for base in bases:
            buckets, sums = self._complete((base + _BUCKET,)), self._complete((base + _SUM,))
            if buckets and sums:
                result = histogram.build(buckets, sums)
                if result is not None:
                    return result
                self._rejected += 1
        return None

    def _sleeping(self) -> bool | None:
        """True if any engine sleeps: `awake` is 0, or a sleep level (`weights_offloaded`, `discard_all`) is 1."""
        rows = self._rows.get(SLEEP_STATE, {})
        for labels, value in rows.items():
            state = dict(labels).get("sleep_state")
            if state is not None and (value == 0 if state == "awake" else value == 1):
                return True
        return False if rows and SLEEP_STATE not in self._spoilt else None

    def _cache_config(self) -> tuple[int | None, int | None]:
        """Tokens a block, and blocks of one engine: of the smallest, if they differ."""
        rows = [dict(labels) for labels in self._rows.get(CACHE_CONFIG, {})]
        sizes = {self._whole_number(row.get("block_size")) for row in rows}
        blocks = [self._whole_number(row.get("num_gpu_blocks")) for row in rows]
        known = [count for count in blocks if count is not None]
        return sizes.pop() if len(sizes) == 1 else None, min(known) if known and len(known) == len(blocks) else None

    def _whole_number(self, text: str | None) -> int | None:
        """`None` is what vLLM writes before it knows."""
        if text is None or text == "None":
            return None
        if re.fullmatch("[0-9]{1,15}", text) and int(text) > 0:
            return int(text)
        self._rejected += 1
        return None

    def _adapters(self) -> tuple[str, ...]:
        """Of all label sets ever used, each still on the page, the one with the newest time (its value) holds."""
        newest: dict[str, float] = {}
        named: dict[tuple[str, float], set[str]] = {}
        for labels, time in self._rows.get(LORA_INFO, {}).items():
            row = dict(labels)
            engine = row.get("engine", "")
            newest[engine] = max(time, newest.get(engine, 0.0))
            lists = f"{row.get('running_lora_adapters', '')},{row.get('waiting_lora_adapters', '')}".split(",")
            named.setdefault((engine, time), set()).update(name.strip() for name in lists)
        return tuple(sorted(set().union(*(named[key] for key in newest.items())) - {""}))

    def _label_values(self, label: str, names: Sequence[str] | Mapping[str, object]) -> set[str]:
        """The values of a label in the rows of `names`; `""` stands for rows without it."""
        return {dict(labels).get(label, "") for name in names for labels in self._rows.get(name, {})}
