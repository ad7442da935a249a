"""What is this server, and how fast is it with nothing else to do?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random, SystemRandom
from statistics import fmean, median
from typing import Any

import orjson

from extproc.autoscale.profile import Server as ServerCard
from extproc.calibrate.client import ModelCard, Server, main_model
from extproc.calibrate.errors import ServerError, TooSlowError
from extproc.calibrate.lengths import Recorded
from extproc.calibrate.plan import Plan
from extproc.calibrate.prompts import WORDS, Prompts, WordCost, sample_text, usable
from extproc.calibrate.sent import Sent
from extproc.pool.sample import LoadSample

_UNCOUNTED, _COUNTED = 3, 5  # requests, one after the other; the first ones of a server are slow
_MARGIN = 0.9  # of the model's length, where prompts are not exact
_FEW, _MANY = 20, 200  # words
_ASK_S = 600.0  # for one of these requests


@dataclass(frozen=True, slots=True)
class Probed:
    """An idle server. Times in seconds."""

    card: ServerCard
    path: str  # where requests go
    next_request: Callable[[Random], bytes]
    has_metrics: bool
    ttft_s: float  # median
    stay_s: float  # mean, to the last token
    notes: tuple[str, ...]  # for a person


async def identify(server: Server, plan: Plan) -> tuple[ServerCard, list[str], bool]:
    """Which server it is, what is to be told of it, and whether its metrics page can be read. Raises ServerError."""
    notes = []
    chosen = _choose(await server.models(), plan.model, server.url)
    if server.behind_envoy:
        notes.append(f"{server.url} answers through an Envoy: calibrate one vLLM server itself, not a fleet")
    version, sample = await server.version(), await server.sample()
    has_metrics = isinstance(sample, LoadSample)
    if isinstance(sample, str):
        notes.append(
            f"no metrics ({sample}): the profile will have rates and times, and no thresholds of waiting requests or KV"
            " usage. --metrics-url names another address"
        )
    card = ServerCard(
        model=chosen.id,
        url=server.url,
        engine="vllm" if version is not None or has_metrics else None,
        version=version,
        kv_tokens=None if isinstance(sample, str) else sample.kv_tokens,
        max_model_len=chosen.max_model_len,
    )
    return card, notes, has_metrics


async def probe(server: Server, plan: Plan, identified: tuple[ServerCard, list[str], bool]) -> Probed:
    """Send a few requests, one after the other. Raises ServerError; TooSlowError if they miss the target already."""
    card, notes, has_metrics = identified
    ids = None if plan.api == "chat" else usable(await server.token_ids(sample_text(), card.model))
    most = card.max_model_len
    if ids is None and most is not None:
        most = int(most * _MARGIN)
    _check_lengths(plan, most, notes)
    path = "/v1/chat/completions" if plan.api == "chat" else "/v1/completions"
    prompts = Prompts(ids, WordCost(), plan.shared_ratio, SystemRandom())
    forced = True
    first = await _one(server, path, _body(plan, card.model, "the", 1, forced=True))
    if first.status in (400, 422) and first.error is not None and _names_extra(first.error):
        forced = False
        notes.append("the server takes no ignore_eos: answers may be shorter than asked for")
        first = await _one(server, path, _body(plan, card.model, "the", 1, forced=False))
    _require(first, server.url)
    if ids is None:
        if plan.api != "chat":
            notes.append("the server has no /tokenize: prompts are words, and about as long as asked for")
        few, many = [
            await _one(server, path, _body(plan, card.model, " ".join(WORDS[:count]), 1, forced=forced))
            for count in (_FEW, _MANY)
        ]
        _require(few, server.url)
        _require(many, server.url)
        if few.prompt_tokens is None or many.prompt_tokens is None:
            raise ServerError(
                f"{server.url} tells neither /tokenize nor usage: no prompt of a known length can be made"
            )
        try:
            cost = WordCost.of((_FEW, few.prompt_tokens), (_MANY, many.prompt_tokens))
        except ValueError as error:
            raise ServerError(f"{server.url} counts tokens oddly: {error}") from None
        prompts = Prompts(None, cost, plan.shared_ratio, SystemRandom())

    def next_request(rng: Random) -> bytes:
        try:
            prompt, output = plan.lengths.draw(rng, most)
        except ValueError as error:
            raise ServerError(str(error)) from None
        return _body(plan, card.model, prompts.make(prompt), output, forced=forced)

    rng = Random(f"{plan.seed} idle")
    answers = [await _one(server, path, next_request(rng)) for _ in range(_UNCOUNTED + _COUNTED)][_UNCOUNTED:]
    for each in answers:
        _require(each, server.url)
    ttft_s = median(each.ttft_s() for each in answers)
    stay_s = fmean((each.last_s or each.due_s) - each.due_s for each in answers)
    if ttft_s > plan.rule.target_s:
        raise TooSlowError(
            f"the target of {plan.rule.target_s:g} s cannot be met: with nothing else to do the server takes"
            f" {ttft_s:.3g} s to the first token (median of {_COUNTED} requests, {plan.lengths.text}). A higher"
            " --ttft-p99, shorter prompts or a faster server"
        )
    return Probed(card, path, next_request, has_metrics, ttft_s, max(stay_s, 1e-3), tuple(notes))


def _choose(cards: list[ModelCard], wanted: str | None, url: str) -> ModelCard:
    if wanted is None:
        return main_model(cards)
    found = next((card for card in cards if card.id == wanted), None)
    if found is None:
        served = ", ".join(card.id for card in cards)
        raise ServerError(f'{url} does not serve "{wanted}"; it serves {served}')
    if found.max_model_len is None:  # an adapter: its base model knows
        return replace(found, max_model_len=next((card.max_model_len for card in cards if card.max_model_len), None))
    return found


def _check_lengths(plan: Plan, most: int | None, notes: list[str]) -> None:
    """Raises ServerError if the requests do not fit the model."""
    if most is None:
        return
    prompt, output = plan.lengths.means
    if prompt + output > most:
        raise ServerError(
            f"prompts of {prompt:,.0f} and answers of {output:,.0f} tokens (means) do not fit the server, which takes"
            f" {most:,} tokens in all; shorten --prompt-tokens or --output-tokens"
        )
    if isinstance(plan.lengths, Recorded):
        count = plan.lengths.too_long(most)
        if count:
            notes.append(f"{count:,} of the {len(plan.lengths.pairs):,} recorded pairs do not fit the server: left out")


def _body(plan: Plan, model: str, prompt: list[int] | str, tokens: int, *, forced: bool) -> bytes:
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if plan.api == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if forced:
        body |= {"ignore_eos": True, "min_tokens": tokens}
    return orjson.dumps(body)


def _names_extra(error: str) -> bool:
    """Whether a refusal is of what only vLLM knows."""
    return any(name in error for name in ("ignore_eos", "min_tokens", "extra", "unknown", "Unrecognized"))


async def _one(server: Server, path: str, body: bytes) -> Sent:
    sent = Sent(asyncio.get_running_loop().time())
    try:
        async with asyncio.timeout(_ASK_S):
            await server.ask(path, body, sent)
    except TimeoutError:
        raise ServerError(f"{server.url} did not answer one request, alone, within {_ASK_S:g} s") from None
    return sent


def _require(sent: Sent, url: str) -> None:
    if sent.error is not None:
        status = "" if sent.status is None else f"{sent.status}: "
        key = "; give its key with --api-key" if sent.status in (401, 403) else ""
        raise ServerError(f"{url} does not answer a request: {status}{sent.error}{key}")
    if sent.first_s is None:
        raise ServerError(f"{url} answers without a single token; does it stream?")
