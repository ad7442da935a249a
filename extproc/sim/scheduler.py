"""What does the next step of the engine compute?

vLLM's V1 scheduler. A step has a budget of `max_num_batched_tokens`, spent

1. on the running requests, oldest first: one token for a decode, the rest of the prompt (or what the budget leaves of
   it) for a prefill. If a request needs a block and none is free, the *newest* running request is preempted: it loses
   its blocks and goes back to the head of the queue, to be computed again;
2. if nothing was preempted, on the waiting requests, first come first served, while there are fewer than `max_num_seqs`
   and the head of the queue fits. What its prompt shares with cached blocks is not computed again, except that at least
   the last token always is. Blocks count as cached from here on, so a sibling admitted in the same step finds them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from extproc.sim.kv_cache import KvCache
from extproc.sim.sequence import Sequence
from extproc.sim.spec import EngineSpec


@dataclass(slots=True)
class Step:
    """The work of one step."""

    batch: list[Sequence] = field(default_factory=list)  # those that compute something
    decodes: int = 0  # sequences that get one more token of an answer begun before
    decode_context_tokens: int = 0  # sum of the decodes' contexts
    prefill_tokens: int = 0
    prefill_s: float = 0.0  # what prefills and admissions add to the step's time
    admitted: list[Sequence] = field(default_factory=list)  # for the first time
    preempted: list[Sequence] = field(default_factory=list)
    head_blocked: bool = False  # the head of the queue cannot be admitted before a request ends
    steady: bool = False  # all that runs was decoded and, until a request ends or comes, so it will be in the next step


class Scheduler:
    """The queue, the batch and the cache."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.cache = KvCache(spec.usable_blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def step(self, now: float) -> Step:
        """Plan the step that starts now, and take its blocks. Something must run or wait."""
        step = Step()
        budget = self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step, budget, now)
        step.steady = step.decodes == len(self.running) and (not self.waiting or step.head_blocked)
        return step

    def extend(self, sequence: Sequence, target: int) -> None:
        """Have blocks for `target` tokens, which are free (the caller has checked). Full ones are cached at once."""
        block_size, cache, blocks = self.spec.block_size_tokens, self.cache, sequence.blocks
        full = target // block_size
        if self.spec.enable_prefix_caching:
            if sequence.computed % block_size and full >= len(blocks):
                index = len(blocks) - 1
                cache.fill(index, sequence.hash_of(index), blocks)
            for index in range(len(blocks), full):
                cache.add_full(sequence.hash_of(index), blocks)
        for _ in range(len(blocks), -(-target // block_size)):
            cache.add_partial(blocks)
        sequence.computed = target

    def _schedule_running(self, step: Step) -> int:
        """Spend the budget on what runs; the rest of the budget."""
        running, cache, batch = self.running, self.cache, step.batch
        block_size = self.spec.block_size_tokens
        budget = self.spec.max_num_batched_tokens
        position = 0
        while position < len(running) and budget:
            sequence = running[position]
            uncomputed = sequence.num_tokens - sequence.computed
            decoding = uncomputed == 1 and sequence.generated > 0
            tokens = min(uncomputed, budget)
            if decoding and 0 < sequence.computed % block_size < block_size - 1:
                # The common case, kept short: a token inside the sequence's last block, which stays partial.
                step.decodes += 1
                step.decode_context_tokens += sequence.computed
                sequence.computed += 1
            else:
                blocks_needed = -(-(sequence.computed + tokens) // block_size) - len(sequence.blocks)
                while blocks_needed > cache.free:
                    victim = running.pop()
                    self._preempt(victim)
                    step.preempted.append(victim)
                    if victim is sequence:
                        return budget
                if decoding:
                    step.decodes += 1
                    step.decode_context_tokens += sequence.computed
                else:
                    step.prefill_tokens += tokens
                    step.prefill_s += self._prefill_s(sequence.computed, tokens)
                self.extend(sequence, sequence.computed + tokens)
            batch.append(sequence)
            budget -= tokens
            position += 1
        return budget

    def _schedule_waiting(self, step: Step, budget: int, now: float) -> None:
        """Admit what fits, in order."""
        spec = self.spec
        while self.waiting and budget:
            sequence = self.waiting[0]
            tokens = self._admit(sequence, budget) if len(self.running) < spec.max_num_seqs else 0
            if not tokens:
                step.head_blocked = True
                return
            self.waiting.popleft()
            self.running.append(sequence)
            if sequence.scheduled_s is None:
                sequence.scheduled_s = now
                sequence.cached_tokens = sequence.computed
                step.admitted.append(sequence)
            step.prefill_tokens += tokens
            step.prefill_s += (
                spec.per_request_s
                + spec.per_prompt_token_s * sequence.num_tokens
                + self._prefill_s(sequence.computed, tokens)
            )
            self.extend(sequence, sequence.computed + tokens)
            step.batch.append(sequence)
            budget -= tokens

    def _admit(self, sequence: Sequence, budget: int) -> int:
        """Hold what is cached of the prompt; how many tokens to compute now, 0 if the request does not fit."""
        spec, cache = self.spec, self.cache
        hits = idle = 0
        if spec.enable_prefix_caching:
            # The output of the last token is needed: a fully cached prompt computes its last block again.
            hits = cache.match(sequence.hashes, (sequence.num_tokens - 1) // spec.block_size_tokens)
            idle = cache.idle(sequence.hashes, hits)
        cached_tokens = hits * spec.block_size_tokens
        tokens = min(sequence.num_tokens - cached_tokens, budget)
        must_fit = sequence.num_tokens if spec.reserve_full_prompt else cached_tokens + tokens
        if -(-must_fit // spec.block_size_tokens) - hits + idle > cache.free:
            return 0
        cache.hold(sequence.hashes, hits, sequence.blocks)
        sequence.computed = cached_tokens
        return tokens

    def _preempt(self, sequence: Sequence) -> None:
        self.cache.release(sequence.blocks)
        sequence.computed = 0
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)

    def _prefill_s(self, context_tokens: int, tokens: int) -> float:
        """The time to compute `tokens` that attend to `context_tokens` before them, and to each other."""
        spec = self.spec
        return tokens * (spec.per_prefill_token_s + spec.per_prefill_token_context_s * (context_tokens + tokens / 2))
