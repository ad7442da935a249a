"""What would a vLLM engine do with these requests, and when?

A discrete-event model in virtual time, without clock or I/O: requests go in with `submit` and `abort`, events come out
of `advance(now)`. The engine works in steps. At the start of a step the scheduler (see `scheduler`) plans it; when its
time (see `spec`) is over, every request whose tokens are all computed has one more token. A request that has all its
tokens leaves and gives back its blocks; the last token of an answer is never computed, so never cached.

Deterministic: the same calls and the same seed give the same events. Calls must have non-decreasing times.

Runs of steps in which nothing but decoding happens are computed together (`_leap`): same result, less work.
"""

from __future__ import annotations

import random

from extproc.sim.events import Event, Finished, FinishReason, FirstToken, Preempted, Request, Token
from extproc.sim.kv_cache import KvCache
from extproc.sim.scheduler import Scheduler, Step
from extproc.sim.sequence import Sequence
from extproc.sim.spec import EngineSpec
from extproc.sim.stats import EngineStats


class Engine:
    """One simulated engine. Times are seconds on any clock that does not go back."""

    def __init__(self, spec: EngineSpec, now: float = 0.0, *, seed: int = 0) -> None:
        self.spec = spec
        self.stats = EngineStats(spec.max_model_len)
        self.slow_factor = 1.0  # multiplies the time of the steps that start from now on
        self._scheduler = Scheduler(spec)
        self._rng = random.Random(seed)
        self._next_jitter: float | None = None  # drawn, not used yet
        self._number = 0
        self._live: dict[str, Sequence] = {}
        self._events: list[Event] = []
        self._ready_s = now  # when the last step ended, or work came to an idle engine
        self._step: Step | None = None  # in flight
        self._step_s = 0.0
        self._step_end_s = 0.0
        self._aborting = 0  # running requests that leave when the step ends
        self._steady = False  # see Step; false as soon as a request ended or came

    # Readings -------------------------------------------------------------------------------------------------------

    @property
    def cache(self) -> KvCache:
        """The engine's blocks: to look at, not to change."""
        return self._scheduler.cache

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._scheduler.waiting)

    @property
    def kv_usage_ratio(self) -> float:
        """Blocks held by running requests over all usable blocks: 0 on an idle engine, however full its cache."""
        return self.cache.used / self.cache.blocks

    def live_ids(self) -> list[str]:
        """Ids of the requests that have not ended, in the order they came."""
        return list(self._live)

    # Commands -------------------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        """Put a request in the queue. Raises ValueError if it is too long for the model or its id is in use."""
        if request.prompt_tokens + request.max_tokens > self.spec.max_model_len:
            raise ValueError(
                f"request {request.id}: {request.prompt_tokens} + {request.max_tokens} tokens are more than "
                f"max_model_len = {self.spec.max_model_len}"
            )
        if request.id in self._live:
            raise ValueError(f"request {request.id}: this id is still in use")
        self._run_until(now)
        if not self._live:
            self._ready_s = now
        if not self._scheduler.waiting:
            self._steady = False
        self._number += 1
        sequence = Sequence(request, self._number, now)
        self._live[request.id] = sequence
        self._scheduler.waiting.append(sequence)

    def abort(self, request_id: str, now: float) -> bool:
        """End a request: at once if it waits, after the step in flight if it runs. False: there is no such request."""
        self._run_until(now)
        sequence = self._live.get(request_id)
        if sequence is None or sequence.aborted:
            return False
        self._steady = False
        if sequence not in self._scheduler.running:
            self._scheduler.waiting.remove(sequence)
        elif self._step is not None:
            sequence.aborted = True
            self._aborting += 1
            return True
        else:
            self._scheduler.running.remove(sequence)
        self._end(sequence, "abort", now)
        return True

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False, and nothing is done, while requests hold some."""
        return self.cache.reset()

    def next_event_at(self) -> float | None:
        """A time before which `advance` returns nothing new (it may still return nothing then); None while idle.

        Ask again after every `submit`, `abort` and `advance`.
        """
        if self._step is None and self._live:
            self._start_step()
        if self._events:
            return self._ready_s
        if self._step is None:
            return None
        end_s = self._step_end_s
        left = self._decode_steps_left()
        # Contexts only grow, so no later step is shorter than this one but for its jitter.
        shortest_s = self._step_s * (1.0 - self.spec.jitter_ratio) / (1.0 + self.spec.jitter_ratio)
        return end_s + max(0, left - 1) * shortest_s * (1.0 - 1e-9)

    def advance(self, now: float) -> list[Event]:
        """Everything that happened up to and at `now`, oldest first."""
        self._run_until(now)
        events = self._events
        self._events = []
        return events

    # Time -----------------------------------------------------------------------------------------------------------

    def _run_until(self, now: float) -> None:
        while True:
            if self._step is None:
                if self._steady and self._live:
                    self._leap(now)
                if not self._live or self._ready_s >= now:
                    return  # a step that could start exactly now waits for what else comes now
                self._start_step()
            if self._step_end_s > now:
                return
            self._finish_step()

    def _duration_s(self, decodes: int, decode_context_tokens: int, prefill_s: float = 0.0) -> float:
        """The time of a step, its jitter included."""
        spec = self.spec
        duration_s = self.slow_factor * (
            spec.base_step_s
            + prefill_s
            + spec.per_decode_seq_s * decodes
            + spec.per_decode_context_token_s * decode_context_tokens
        )
        if not spec.jitter_ratio:
            return duration_s
        if self._next_jitter is None:
            self._next_jitter = self._rng.uniform(1.0 - spec.jitter_ratio, 1.0 + spec.jitter_ratio)
        return duration_s * self._next_jitter

    # A step ---------------------------------------------------------------------------------------------------------

    def _start_step(self) -> None:
        now, stats = self._ready_s, self.stats
        self._step = step = self._scheduler.step(now)
        for sequence in step.preempted:
            stats.preemptions += 1
            self._events.append(Preempted(sequence.request.id, now))
        if self.spec.enable_prefix_caching:
            for sequence in step.admitted:
                stats.prefix_queries += sequence.request.prompt_tokens
                stats.prefix_hits += sequence.cached_tokens
        self._step_s = self._duration_s(step.decodes, step.decode_context_tokens, step.prefill_s)
        self._next_jitter = None
        self._step_end_s = now + self._step_s
        self._steady = step.steady

    def _finish_step(self) -> None:
        step, now = self._step, self._step_end_s
        assert step is not None
        stats, events = self.stats, self._events
        self._step, self._ready_s = None, now
        stats.steps += 1
        stats.busy_s += self._step_s
        new_tokens, ended = 0, self._aborting
        since_s, same = now, 0  # tokens whose predecessor came at since_s: nearly all of a batch share one
        for sequence in step.batch:
            if sequence.aborted or sequence.computed < sequence.num_tokens:
                continue
            request = sequence.request
            new_tokens += 1
            sequence.num_tokens += 1
            sequence.generated += 1
            if sequence.generated == 1:
                self._first_token(sequence, now)
            else:
                if sequence.last_token_s != since_s:
                    stats.token_interval.observe(now - since_s, same)
                    since_s, same = sequence.last_token_s, 0
                same += 1
                if request.token_events:
                    events.append(Token(request.id, now, sequence.generated - 1))
            sequence.last_token_s = now
            ended += sequence.generated == request.max_tokens
        stats.token_interval.observe(now - since_s, same)
        stats.generation_tokens += new_tokens
        stats.step_tokens.observe(step.prefill_tokens + new_tokens)
        if ended:
            self._drop_ended(now)

    def _first_token(self, sequence: Sequence, now: float) -> None:
        stats, request = self.stats, sequence.request
        sequence.first_token_s = now
        stats.prompt_tokens += request.prompt_tokens
        stats.cached_prompt_tokens += sequence.cached_tokens
        stats.ttft.observe(now - sequence.submitted_s)
        self._events.append(FirstToken(request.id, now, sequence.cached_tokens))

    def _drop_ended(self, now: float) -> None:
        self._steady = False
        self._aborting = 0
        running = self._scheduler.running
        self._scheduler.running = [sequence for sequence in running if not (sequence.aborted or sequence.done)]
        for sequence in running:
            if sequence.aborted:
                self._end(sequence, "abort", now)
            elif sequence.done:
                self.stats.request_completed(sequence)
                self._end(sequence, sequence.request.finish_reason, now)

    def _end(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        request = sequence.request
        self.cache.release(sequence.blocks)
        del self._live[request.id]
        self.stats.finished[reason] += 1
        self._events.append(
            Finished(
                request_id=request.id,
                at_s=now,
                reason=reason,
                prompt_tokens=request.prompt_tokens,
                generated_tokens=sequence.generated,
                cached_tokens=sequence.cached_tokens,
                preemptions=sequence.preemptions,
                submitted_s=sequence.submitted_s,
                scheduled_s=sequence.scheduled_s,
                first_token_s=sequence.first_token_s,
            )
        )

    # Many steps -----------------------------------------------------------------------------------------------------

    def _steps_with_blocks(self) -> int:
        """In how many steps from now the running requests, if all decode, surely find blocks.

        None of them takes more than one block in `block_size_tokens` steps.
        """
        return self.cache.free // len(self._scheduler.running) * self.spec.block_size_tokens

    def _decode_steps_left(self) -> int:
        """How many steps, the one in flight included, surely tell nothing before the last of them ends."""
        if not self._steady:
            return 0
        left = self._steps_with_blocks() + 1  # the step in flight has its blocks
        for sequence in self._scheduler.running:
            if sequence.request.token_events or sequence.aborted:
                return 0
            left = min(left, sequence.request.max_tokens - sequence.generated)
        return left

    def _leap(self, now: float) -> None:
        """Do at once all steps up to `now` that only decode what runs, and end no request."""
        running, stats = self._scheduler.running, self.stats
        decodes = len(running)
        limit = self._steps_with_blocks()
        context_tokens = 0
        for sequence in running:
            limit = min(limit, sequence.request.max_tokens - sequence.generated - 1)
            context_tokens += sequence.computed
        start_s = end_s = self._ready_s
        ends_s: list[float] = []
        while len(ends_s) < limit:
            step_s = self._duration_s(decodes, context_tokens)
            if end_s + step_s > now:
                break
            self._next_jitter = None
            stats.token_interval.observe(step_s, decodes)
            end_s += step_s
            ends_s.append(end_s)
            context_tokens += decodes
        steps = len(ends_s)
        if not steps:
            return
        for sequence in running:
            sequence.num_tokens += steps
            sequence.generated += steps
            sequence.last_token_s = end_s
            self._scheduler.extend(sequence, sequence.computed + steps)
        told = [sequence for sequence in running if sequence.request.token_events]
        if told:
            for back, at_s in enumerate(ends_s, start=1 - steps):
                self._events += [Token(sequence.request.id, at_s, sequence.generated - 1 + back) for sequence in told]
        stats.steps += steps
        stats.busy_s += end_s - start_s
        stats.generation_tokens += steps * decodes
        stats.step_tokens.observe(decodes, steps)
        self._ready_s = end_s
