"""How does one inference request become engine requests, and their events an answer?"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Literal

from aiohttp import web

from extproc.sim.driver import EngineDiedError, EngineDriver, Mailbox
from extproc.sim.events import Event, Finished, FirstToken, Request, Token
from extproc.sim.faults import Faults
from extproc.sim.text import Conversation, seed_hash
from extproc.sim.wire import DONE, ENGINE_DEAD, ApiError, Ask, ChunkWriter, error_event, full_answer, usage


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How long answers are and what they tell."""

    default_tokens: int = 128  # of an answer whose request sets no limit
    mean_tokens: int | None = None  # answers end by themselves after so many on average; None: at their limit
    tell_cached_tokens: bool = True  # vLLM's --enable-prompt-tokens-details
    seed: int = 0
    stream_interval: int = 1  # vLLM's --stream-interval: after its first token a stream is told so many at once

    def __post_init__(self) -> None:
        if self.stream_interval < 1:
            raise ValueError(f"stream_interval: {self.stream_interval} is below 1")


class StreamSilencedError(Exception):
    """The stream is to fall silent and stay open."""


class StreamResetError(Exception):
    """The connection is to be reset."""


class _Job:
    """One prompt of the request, inside the engine."""

    __slots__ = ("cached_tokens", "conversation", "finish_reason", "generated", "id", "max_tokens", "told")

    def __init__(self, job_id: str, conversation: Conversation, max_tokens: int, reason: Literal["stop", "length"]):
        self.id = job_id
        self.conversation = conversation
        self.max_tokens = max_tokens
        self.finish_reason: Literal["stop", "length"] = reason
        self.cached_tokens = 0
        self.generated = 0
        self.told = 0  # tokens of the answer that its stream has carried


class Exchange:
    """An inference request from its parsed body to its last byte. Call `close` in any case."""

    def __init__(self, ask: Ask, answer_id: str, driver: EngineDriver, options: AnswerOptions) -> None:
        self._ask = ask
        self._id = answer_id
        self._driver = driver
        self._options = options
        self._mailbox = Mailbox()
        self._created_unix_s = int(time.time())
        spec = driver.engine.spec
        chain_seed = seed_hash(ask.model, ask.cache_salt)
        self._jobs: dict[str, _Job] = {}
        for number, prompt in enumerate(ask.prompts):
            conversation = Conversation(prompt, spec.block_size_tokens, chain_seed=chain_seed, answer_seed=options.seed)
            job_id = f"{answer_id}-{number}"
            max_tokens, reason = self._length(conversation, spec.max_model_len)
            self._jobs[job_id] = _Job(job_id, conversation, max_tokens, reason)

    def submit(self) -> None:
        """Put all prompts in the engine's queue."""
        for job in self._jobs.values():
            request = Request(
                id=job.id,
                prompt_tokens=job.conversation.prompt_tokens,
                max_tokens=job.max_tokens,
                block_hashes=job.conversation.block_hashes,
                next_hash=job.conversation.answer_hash,
                finish_reason=job.finish_reason,
                token_events=self._ask.stream and job.max_tokens > self._options.stream_interval,
            )
            self._driver.submit(request, self._mailbox)

    def close(self) -> None:
        """Abort what the engine still does for this request."""
        for job_id in self._jobs:
            self._driver.abort(job_id)

    async def full(self) -> bytes:
        """Wait for all of it; the body. Raises ApiError (500) if the engine dies."""
        open_jobs = len(self._jobs)
        try:
            while open_jobs:
                for event in await self._mailbox.get():
                    self._note(event)
                    open_jobs -= isinstance(event, Finished)
        except EngineDiedError:
            raise ApiError(500, ENGINE_DEAD) from None
        choices = [
            (job.conversation.words(0, job.max_tokens), job.finish_reason)
            for job in self._jobs.values()
            for _ in range(self._ask.choices)
        ]
        ask = self._ask
        return full_answer(ask.kind, self._id, ask.model, self._created_unix_s, choices, self._usage())

    async def stream(self, response: web.StreamResponse, faults: Faults) -> None:
        """Write the events as they come. Raises StreamSilencedError or StreamResetError where a fault says so."""
        ask, writer = self._ask, ChunkWriter(self._ask.kind, self._id, self._ask.model, self._created_unix_s)
        numbers = {job_id: number for number, job_id in enumerate(self._jobs)}
        open_jobs, words = len(self._jobs), 0
        hang_after, reset_after = faults.hang_after_tokens, faults.reset_after_tokens
        while open_jobs:
            try:
                events = await self._mailbox.get()
            except EngineDiedError:
                await response.write((error_event(ENGINE_DEAD, 500) + DONE).encode())
                return
            out: list[str] = []
            for event in events:
                if hang_after is not None and words >= hang_after:
                    await response.write("".join(out).encode())
                    raise StreamSilencedError
                if reset_after is not None and words >= reset_after:
                    await response.write("".join(out).encode())
                    raise StreamResetError
                self._note(event)
                job = self._jobs[event.request_id]
                open_jobs -= isinstance(event, Finished)
                last = job.generated == job.max_tokens
                if job.told == job.generated or not (
                    last or job.told == 0 or job.generated - job.told >= self._options.stream_interval
                ):
                    continue
                words += job.generated - job.told
                first, text = job.told == 0, job.conversation.words(job.told, job.generated)
                job.told = job.generated
                for choice in range(ask.choices):
                    index = numbers[job.id] * ask.choices + choice
                    if first:
                        out.append(writer.role(index))
                    out.append(writer.word(index, text, job.finish_reason if last else None))
            if not open_jobs:
                if ask.include_usage:
                    out.append(writer.usage(self._usage()))
                out.append(DONE)
            if out:
                await response.write("".join(out).encode())

    def _note(self, event: Event) -> None:
        job = self._jobs[event.request_id]
        if isinstance(event, FirstToken):
            job.cached_tokens = event.cached_tokens
            job.generated = 1
        elif isinstance(event, Token):
            job.generated = event.index + 1
        elif isinstance(event, Finished):
            job.generated = event.generated_tokens

    def _usage(self) -> dict[str, object]:
        jobs = self._jobs.values()
        cached = sum(job.cached_tokens for job in jobs)
        return usage(
            sum(job.conversation.prompt_tokens for job in jobs),
            sum(job.generated for job in jobs) * self._ask.choices,
            cached if self._options.tell_cached_tokens else None,
        )

    def _length(self, conversation: Conversation, max_model_len: int) -> tuple[int, Literal["stop", "length"]]:
        """How many tokens the answer gets, and why it ends. Raises ApiError (400) if they do not fit the model."""
        ask, options = self._ask, self._options
        prompt_tokens = conversation.prompt_tokens
        room = max_model_len - prompt_tokens
        if room < (ask.max_tokens or 1):
            wanted = ask.max_tokens or 1
            raise ApiError(
                400,
                f"This model's maximum context length is {max_model_len} tokens. However, you requested {wanted} "
                f"output tokens and your prompt contains at least {prompt_tokens} input tokens, for a total of at "
                f"least {prompt_tokens + wanted} tokens. Please reduce the length of the input prompt or the number of "
                "requested output tokens.",
                param="input_tokens",
            )
        limit = min(room, ask.max_tokens if ask.max_tokens is not None else options.default_tokens)
        if options.mean_tokens is not None and not ask.ignore_eos:
            last_hash = conversation.block_hashes[-1] if conversation.block_hashes else prompt_tokens
            rng = random.Random(last_hash ^ options.seed)
            own = max(1, ask.min_tokens, round(rng.expovariate(1.0 / options.mean_tokens)))
            if own < limit or ask.max_tokens is None:
                return min(own, room), "stop"
        return limit, "length" if ask.max_tokens is not None else "stop"
