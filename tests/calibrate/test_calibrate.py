"""The load test over real HTTP, against the simulated server, on a clock that does not depend on the machine.

The knee that it finds is compared with that which the engine's constants imply (`extproc.sim.knee`, another search,
without HTTP, over the same engine model).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from extproc.autoscale.profile import Profile, StepRow
from extproc.calibrate import kept as files
from extproc.calibrate.client import new_session
from extproc.calibrate.errors import (
    CalibrationError,
    ClientError,
    OptionError,
    OtherParametersError,
    ServerError,
    TooSlowError,
)
from extproc.calibrate.fleet import differences, look
from extproc.calibrate.judge import Rule
from extproc.calibrate.kept import Kept
from extproc.calibrate.lengths import Recorded
from extproc.calibrate.load import NotIdleError
from extproc.calibrate.result import readings, yaml_lines
from extproc.sim.answering import AnswerOptions
from extproc.sim.api import ServerOptions
from extproc.sim.knee import between, knee
from extproc.sim.server import SimServer
from extproc.sim.spec import EngineSpec
from tests.calibrate import clock
from tests.calibrate.worlds import QUICK, SPEC, Watch, calibrated, first_steps, plan_of
from tests.support.envoy_config import free_port


def test_the_knee_is_that_which_the_engines_constants_imply(tmp_path: Path) -> None:
    implied = knee(SPEC, between((20, 180), (4, 12)), 0.3, requests=2000)

    async def work() -> Profile:
        async with SimServer("a", SPEC) as server:
            rule = Rule(target_s=0.3, tolerance=0.1, least_s=3.0)
            plan = plan_of(server, rule=rule, warm_up_s=1.0, first_per_s=24.0, seed=6, poll_s=0.2)
            return await calibrated(plan, tmp_path)

    profile = clock.run(work())
    assert profile.knee_per_s == pytest.approx(implied.knee_per_s, rel=0.1)
    assert profile.missed_per_s is not None
    assert profile.missed_per_s / profile.knee_per_s <= 1.1
    # And so are the readings there: of the engine's own gauges, and of the client's times.
    mine, theirs = (each.calibration.at(0.8 * implied.knee_per_s) for each in (profile, implied))
    assert mine.running == pytest.approx(theirs.running, rel=0.15)
    assert mine.prefill_tokens_per_s == pytest.approx(theirs.prefill_tokens_per_s, rel=0.15)
    assert mine.kv_usage_ratio == pytest.approx(theirs.kv_usage_ratio, abs=0.02)
    assert profile.lengths.prompt_tokens == pytest.approx(100, rel=0.05)
    assert profile.lengths.output_tokens == pytest.approx(8, rel=0.05)
    assert profile.lengths.uncached_tokens == pytest.approx(profile.lengths.prompt_tokens, rel=0.01)
    assert profile.server.version == "0.32.0"
    assert profile.server.kv_tokens == SPEC.num_gpu_blocks * SPEC.block_size_tokens
    low = profile.steps[0]
    # Little's law holds of what is recorded: requests there are rate x time.
    stay_s = (low.ttft_mean_s or 0.0) + (low.output_tokens or 0.0) * (low.token_interval_mean_s or 0.0)
    assert (low.running or 0.0) + (low.waiting or 0.0) == pytest.approx(low.rate_per_s * stay_s, rel=0.35)


def test_steps_tell_what_was_seen_and_the_profile_is_read_as_the_service_reads_it(tmp_path: Path) -> None:
    watch = Watch()

    async def work() -> Profile:
        async with SimServer("a", SPEC) as server:
            return await calibrated(plan_of(server), tmp_path, watch)

    profile = clock.run(work())
    assert Profile.model_validate_json(profile.model_dump_json(exclude_none=True)) == profile
    rates = [row.rate_per_s for row in profile.steps]
    assert rates == sorted(rates)
    assert watch.begun[:2] == [20.0, 40.0]
    assert watch.begun[-1] == profile.knee_per_s  # once more, to be sure
    assert watch.phases == {"warming up", "measuring", "cooling down"}
    missed = [row for row in profile.steps if not row.met]
    assert missed
    assert all(row.waiting is not None and row.waiting > 1.0 for row in missed)
    assert all(row.hit_ratio == 0.0 for row in profile.steps if row.met)
    rows = readings(profile, 0.05, 120.0)
    assert [each.rate_per_s for _, each in rows] == [
        profile.knee_per_s,
        pytest.approx(max(profile.knee_per_s - 0.05 * 166.0, 0.4 * profile.knee_per_s)),
    ]
    assert "design_growth_per_s2: 0.05" in yaml_lines(profile, "profile.json", "vllm", 0.05)


# Going on -------------------------------------------------------------------------------------------------------------


def test_interrupted_it_goes_on_after_the_steps_it_has(tmp_path: Path) -> None:
    steps_file = tmp_path / "profile.json.steps"
    again = Watch()

    async def work() -> tuple[Kept | None, Profile]:
        async with SimServer("a", SPEC, port=free_port()) as server:
            plan = plan_of(server)
            with pytest.raises(KeyboardInterrupt):
                await calibrated(plan, tmp_path, Watch(stop_after=2))
            kept = files.load(steps_file)
            assert kept is not None
            files.require_same(steps_file, kept, plan.parameters())
            return files.load(steps_file), await calibrated(plan, tmp_path, again, kept)

    kept, profile = clock.run(work())
    assert kept is not None
    assert [row.rate_per_s for row in kept.steps] == [20.0, 40.0]
    assert again.begun[0] == 80.0
    assert profile.steps[:1] == tuple(kept.steps[:1])
    finished = files.load(steps_file)
    assert finished is not None
    assert len(finished.steps) == 2 + len(again.rows)


def test_steps_of_other_parameters_are_not_mixed_with_these(tmp_path: Path) -> None:
    path = tmp_path / "p.steps"
    plan, other = plan_of("http://h:1"), plan_of("http://h:1", rule=Rule(target_s=2.0))
    files.save(path, Kept(parameters=plan.parameters()))
    kept = files.load(path)
    assert kept is not None
    files.require_same(path, kept, plan.parameters())
    with pytest.raises(OtherParametersError, match=r"ttft_p99_s 0.15, now 2.0.*--anew measures"):
        files.require_same(path, kept, other.parameters())
    path.write_text("{}")
    with pytest.raises(OtherParametersError, match="holds no steps"):
        files.load(path)
    assert files.load(tmp_path / "none") is None
    with pytest.raises(CalibrationError, match="cannot be written"):
        files.save(tmp_path / "no" / "folder", kept)


def test_steps_of_another_server_are_not_mixed_with_these(tmp_path: Path) -> None:
    async def work() -> None:
        port = free_port()
        kept: Kept | None = None
        for model in ("one", "two"):
            async with SimServer("a", SPEC, port=port, options=ServerOptions(models=(model,))) as server:
                plan = plan_of(server)
                kept = Kept(parameters=plan.parameters()) if kept is None else kept
                with pytest.raises(KeyboardInterrupt if model == "one" else OtherParametersError) as caught:
                    await calibrated(plan, tmp_path, Watch(stop_after=1), kept)
        assert "model one, now two" in str(caught.value)

    clock.run(work())


# What cannot be measured ----------------------------------------------------------------------------------------------


def test_a_target_below_the_idle_servers_time_is_told_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with SimServer("a", SPEC) as server:
            await calibrated(plan_of(server, rule=Rule(target_s=0.004)), tmp_path)

    with pytest.raises(TooSlowError, match=r"with nothing else to do the server takes 0\.00\d+ s to the first token"):
        clock.run(work())


def test_a_target_that_long_prompts_miss_alone_is_told_after_the_lowest_rates(tmp_path: Path) -> None:
    slow = EngineSpec(
        base_step_s=0.005, per_prefill_token_s=1e-3, per_decode_seq_s=1e-4, num_gpu_blocks=2001, max_model_len=2048
    )
    lengths = Recorded(((20, 4),) * 9 + ((900, 4),), "one of ten is long")

    async def work() -> None:
        async with SimServer("a", slow) as server:
            await calibrated(plan_of(server, lengths), tmp_path)

    with pytest.raises(TooSlowError, match=r"missed however few requests come.*the 99th percentile is 0\.9"):
        clock.run(work())


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"error_status": 500, "error_ratio": 0.5}, "requests failed, the last with: status 500.*look at the log"),
        ({"reset_ratio": 0.5}, "requests failed, the last with: .*look at the log"),
        ({"error_status": 400}, "answers 400: the fault error_status"),
    ],
)
def test_a_server_that_fails_is_no_knee(faults: dict[str, Any], message: str, tmp_path: Path) -> None:
    class Break(Watch):
        def begins(self, number: int, step: Any) -> None:
            server.set_faults(**faults)

    async def work() -> None:
        nonlocal server
        async with SimServer("a", SPEC) as server:
            await calibrated(plan_of(server), tmp_path, Break())

    server: SimServer
    with pytest.raises(ServerError, match=message):
        clock.run(work())


def test_requests_that_a_full_server_refuses_miss_the_target(tmp_path: Path) -> None:
    async def work() -> list[StepRow]:
        async with SimServer("a", SPEC, options=ServerOptions(max_queued_requests=3)) as server:
            return await first_steps(plan_of(server, first_per_s=160.0), tmp_path, 1)

    (row,) = clock.run(work())
    assert not row.met
    assert row.errors
    assert row.ttft_p50_s is not None
    assert row.ttft_p50_s < QUICK.target_s  # those that it took were in time


def test_without_metrics_there_is_a_profile_without_their_thresholds_and_a_note(tmp_path: Path) -> None:
    watch = Watch()

    async def work() -> Profile:
        async with SimServer("a", SPEC) as server:
            server.set_faults(metrics="error")
            return await calibrated(plan_of(server), tmp_path, watch)

    profile = clock.run(work())
    assert any("no metrics" in note and "status 500" in note and "--metrics-url" in note for note in watch.notes)
    thresholds = profile.calibration.led(0.0, 0.0)
    assert (thresholds.waiting, thresholds.kv_usage_ratio, thresholds.running) == (None, None, None)
    assert thresholds.ttft_s is not None
    assert profile.server.kv_tokens is None


def test_a_client_that_is_late_itself_gives_no_figure(tmp_path: Path) -> None:
    watch = Watch()

    async def stall() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, clock.Loop)
        while True:
            await asyncio.sleep(0.2)
            loop.stall(0.05)

    async def work() -> None:
        async with SimServer("a", SPEC) as server:
            stalling = asyncio.create_task(stall())
            try:
                await calibrated(
                    plan_of(server, rule=Rule(target_s=0.4, confidence=0.5, tolerance=0.5, least_s=0.5)),
                    tmp_path,
                    watch,
                )
            finally:
                stalling.cancel()

    with pytest.raises(ClientError, match=r"at 20 requests/s this client is the bottleneck.*ms late"):
        clock.run(work())
    assert any("Measured once more" in note for note in watch.notes)
    assert not watch.rows


def test_a_server_with_other_work_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        slow = EngineSpec(
            base_step_s=0.5, per_prefill_token_s=0.0, per_decode_seq_s=0.0, num_gpu_blocks=2001, max_model_len=2048
        )
        async with (
            SimServer("a", slow) as server,
            new_session(None, None) as session,
            session.post(f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 200, "stream": True}),
        ):
            await calibrated(plan_of(server), tmp_path)

    with pytest.raises(NotIdleError, match=r"1 requests are on it.*extproc drain"):
        clock.run(work())


def test_other_work_during_a_step_is_noticed(tmp_path: Path) -> None:
    class Busy(Watch):
        def begins(self, number: int, step: Any) -> None:
            others.extend(asyncio.create_task(ask()) for _ in range(3))

    async def ask() -> None:
        async with new_session(None, None) as session:
            body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True}
            async with session.post(f"{server.url}/v1/completions", json=body) as response:
                await response.read()

    async def work() -> None:
        nonlocal server
        async with SimServer("a", SPEC) as server:
            try:
                await calibrated(plan_of(server, poll_s=0.1), tmp_path, Busy())
            finally:
                await asyncio.gather(*others, return_exceptions=True)

    server: SimServer
    others: list[asyncio.Task[None]] = []
    with pytest.raises(NotIdleError, match="more requests than this test sends"):
        clock.run(work())


# What is no vLLM ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def answering(answers: dict[str, web.Response]) -> AsyncIterator[str]:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        found = answers.get(request.path, web.Response(status=404, text="not here"))
        return web.Response(status=found.status, body=found.body, headers=dict(found.headers))

    server = web.Server(handle)
    runner = web.ServerRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", free_port())
    await site.start()
    try:
        yield site.name
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({}, "/v1/models gives status 404 .not here.: that is no OpenAI API. Name the vLLM server itself"),
        ({"/v1/models": web.Response(text="<html>")}, "gives no list of models"),
        ({"/v1/models": web.Response(status=401, text="{}")}, "wants an API key .status 401.; give it with --api-key"),
    ],
)
def test_what_is_no_vllm_is_said_so(answers: dict[str, web.Response], message: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with answering(answers) as url:
            await calibrated(plan_of(url), tmp_path)

    with pytest.raises(ServerError, match=message):
        clock.run(work())


def test_a_wrong_address_and_a_wrong_model_are_named(tmp_path: Path) -> None:
    async def away() -> None:
        await calibrated(plan_of(f"http://127.0.0.1:{free_port()}"), tmp_path)

    async def unserved() -> None:
        async with SimServer("a", SPEC) as server:
            await calibrated(plan_of(server, model="llama"), tmp_path)

    with pytest.raises(ServerError, match=r"no server at http://127.0.0.1:\d+ .*is it running"):
        clock.run(away())
    with pytest.raises(ServerError, match='does not serve "llama"; it serves sim'):
        clock.run(unserved())


def test_requests_longer_than_the_model_are_told_before_any_is_sent(tmp_path: Path) -> None:
    async def work() -> None:
        async with SimServer("a", EngineSpec(**{**_fields(SPEC), "max_model_len": 64})) as server:
            try:
                await calibrated(plan_of(server), tmp_path)
            finally:
                assert server.ledger.seen == 0

    with pytest.raises(
        ServerError, match=r"prompts of 100 and answers of 8 tokens \(means\) do not fit the server, which takes 64"
    ):
        clock.run(work())


def _fields(spec: EngineSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in EngineSpec.__dataclass_fields__}


# Prompts and lengths on the wire --------------------------------------------------------------------------------------


def test_nothing_is_found_in_the_cache_but_what_is_to_be(tmp_path: Path) -> None:
    async def work(shared: float) -> list[float]:
        async with SimServer("a", SPEC) as server:
            out = []
            for _ in range(2):  # the second run must not meet the first one's prompts
                hits = (await first_steps(plan_of(server, shared_ratio=shared), tmp_path, 1))[0].hit_ratio
                assert hits is not None
                out.append(hits)
            return out

    assert clock.run(work(0.0)) == [0.0, 0.0]
    # Only whole blocks of 16 tokens are found, of prompts of 100 on average.
    assert clock.run(work(0.8)) == [pytest.approx(0.72, abs=0.06)] * 2


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_answers_are_as_long_as_asked_for_and_chats_work(api: str, tmp_path: Path) -> None:
    options = ServerOptions(answers=AnswerOptions(mean_tokens=2))  # would end by itself

    async def work() -> list[StepRow]:
        async with SimServer("a", SPEC, options=options) as server:
            return await first_steps(plan_of(server, api=api), tmp_path, 1)

    (row,) = clock.run(work())
    assert row.output_tokens == pytest.approx(8, rel=0.1)
    assert row.prompt_tokens == pytest.approx(100, rel=0.2)


# A running service ----------------------------------------------------------------------------------------------------


def test_lengths_and_limits_come_from_the_servers_of_a_running_service(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            SimServer("a", SPEC) as first,
            SimServer("b", EngineSpec(**{**_fields(SPEC), "max_model_len": 1024, "num_gpu_blocks": 999})) as second,
            new_session(None, None) as session,
        ):
            ends = [{"address": each.address} for each in (first, second)] + [{"address": f"127.0.0.1:{free_port()}"}]
            pages = {
                "/status": web.Response(body=orjson.dumps({"pools": {"vllm": {"endpoints": ends}}})),
                "/autoscale/v1/pools/vllm": web.Response(body=orjson.dumps({"ttft_target_s": 2})),
            }
            async with answering(pages) as service:
                before = await look(session, session, service, None)
                assert (before.lengths, before.asked, before.servers) == (None, 2, 3)
                for server, words in ((first, 30), (second, 90)):
                    for _ in range(4):
                        body = {"prompt": [words] * words, "max_tokens": 5, "ignore_eos": True}
                        async with session.post(f"{server.url}/v1/completions", json=body) as response:
                            await response.read()
                fleet = await look(session, session, service, "vllm")
                assert fleet.lengths is not None
                assert fleet.lengths.means == pytest.approx((60, 5))
                assert (fleet.requests, fleet.ttft_target_s) == (8, 2.0)
                assert fleet.hit_ratio is not None
                assert fleet.hit_ratio > 0.3
                told = differences(fleet.cards[0], fleet.cards)
                assert told == [
                    "max_model_len is 2048 here and 1024 in the fleet",
                    "the KV cache has room for 32,016 tokens here and 15,984 in the fleet",
                ]
                with pytest.raises(OptionError, match='no pool "other"; it has vllm'):
                    await look(session, session, service, "other")
            async with answering({}) as nothing:
                with pytest.raises(ServerError, match="no JSON"):
                    await look(session, session, nothing, None)

    clock.run(work())


# A real one -----------------------------------------------------------------------------------------------------------

REAL_URL = os.environ.get("EXTPROC_TEST_VLLM_URL")


@pytest.mark.slow
@pytest.mark.skipif(REAL_URL is None, reason="EXTPROC_TEST_VLLM_URL names no vLLM server that is otherwise idle")
async def test_a_real_vllm_is_calibrated(tmp_path: Path) -> None:
    assert REAL_URL is not None
    rule = Rule(target_s=5.0, confidence=0.6, tolerance=0.5, least_s=5.0, most=300)
    watch = Watch()
    plan = plan_of(REAL_URL.rstrip("/"), rule=rule, late_ratio=0.5, first_per_s=2.0, warm_up_s=3.0, cool_down_s=60.0)
    profile = await calibrated(plan, tmp_path, watch)
    assert profile.server.engine == "vllm"
    assert profile.server.kv_tokens
    met = [row for row in profile.steps if row.met]
    assert met
    assert all(row.errors == 0 for row in met)
    assert profile.lengths.prompt_tokens == pytest.approx(100, rel=0.1)
    assert profile.lengths.output_tokens == pytest.approx(8, rel=0.1)
    thresholds = profile.calibration.led(0.0, 0.0)
    assert None not in (
        thresholds.waiting,
        thresholds.running,
        thresholds.kv_usage_ratio,
        thresholds.prefill_tokens_per_s,
    )
