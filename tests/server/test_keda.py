"""The external scaler, asked by a client that behaves like KEDA."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from extproc.autoscale.recommendation import Recommendation
from extproc.config.settings import GrpcSettings, TlsSettings
from extproc.server import keda, listener
from tests.support.certificates import authority, signed_by
from tests.support.envoy_config import free_port
from tests.support.keda_client import LONGEST_RETRY_S, RETRY_S, Pushes, Spec, Trigger, connect
from tests.support.recommended import FOUR, Known
from tests.support.waiting import eventually

LOOK_S = 0.02


class Service:
    """A scaler on a port, which can be stopped and started again there."""

    def __init__(self, known: Known, *, tls: TlsSettings | None = None) -> None:
        self.known = known
        self.target = f"127.0.0.1:{free_port()}"
        self._settings = GrpcSettings(listen=self.target, tls=tls)

    async def start(self) -> None:
        self.scaler = keda.KedaScaler(self.known, look_s=LOOK_S)
        self._server, _ = listener.build(self._settings, 1 << 20, [keda.handlers(self.scaler)])
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    running = Service(Known(vllm=FOUR))
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def channel(service: Service) -> AsyncIterator[grpc.aio.Channel]:
    async with connect(service.target) as connected:
        yield connected


@contextlib.asynccontextmanager
async def pushing(trigger: Trigger) -> AsyncIterator[Pushes]:
    pushes = Pushes(trigger)
    task = asyncio.create_task(pushes.run())
    try:
        yield pushes
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def refusal(asking: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        async with asyncio.timeout(10):
            await asking
    return error.value.code().name, error.value.details()


class TestTheNumber:
    async def test_the_hpa_comes_to_what_is_recommended(self, service: Service, channel: grpc.aio.Channel) -> None:
        trigger = Trigger(channel)
        for current, desired in ((4, 4), (4, 7), (4, 3), (1, 9), (10, 12)):
            service.known.set("vllm", desired)
            assert await trigger.replicas(current) == desired

    @pytest.mark.parametrize("floats", [True, False], ids=["KEDA 2.17 and newer", "KEDA up to 2.16"])
    async def test_all_versions_of_keda_see_the_same_number(self, channel: grpc.aio.Channel, floats: bool) -> None:
        trigger = Trigger(channel, floats=floats)
        assert await trigger.spec() == [Spec("s0-desired-replicas", 1000)]
        assert await trigger.metrics_and_activity("s0-desired-replicas") == ([4000], True)

    async def test_none_wanted_is_a_number_too(self, service: Service, channel: grpc.aio.Channel) -> None:
        service.known.set("vllm", 0)
        assert await Trigger(channel).metrics_and_activity("s0-desired-replicas") == ([0], False)

    async def test_an_hpa_with_its_own_tolerance_ignores_one_of_twenty(
        self, service: Service, channel: grpc.aio.Channel
    ) -> None:
        """Why the manual asks for a tolerance of 0 in large fleets."""
        service.known.set("vllm", 21)
        assert await Trigger(channel).replicas(20) == 20
        assert await Trigger(channel).replicas(20, tolerance=0.0) == 21


class TestWhatIsNotKnown:
    CASES = (
        (None, "pool vllm: it was not looked at yet"),
        (
            replace(FOUR, desired=None, reason="nothing is recommended: the servers of the pool are not known yet"),
            "pool vllm: nothing is recommended: the servers of the pool are not known yet",
        ),
        (
            replace(FOUR, stale=True, age_s=312.4),
            "pool vllm: the load of its servers was last known 312 s ago",
        ),
        (replace(FOUR, stale=True, age_s=None), "pool vllm: the load of its servers is not known"),
        (replace(FOUR, desired=0, stale=True, age_s=None), "pool vllm: the load of its servers is not known"),
    )

    @pytest.mark.parametrize(("recommended", "words"), CASES)
    async def test_it_is_unavailable_with_the_reason_and_never_a_number(
        self, service: Service, channel: grpc.aio.Channel, recommended: Recommendation | None, words: str
    ) -> None:
        service.known.pools["vllm"] = recommended
        trigger = Trigger(channel)
        assert await refusal(trigger.metrics_and_activity("s0-desired-replicas")) == ("UNAVAILABLE", words)
        assert await refusal(trigger.is_active()) == ("UNAVAILABLE", words)
        assert await refusal(trigger.replicas(4)) == ("UNAVAILABLE", words)

    async def test_the_specification_is_there_before_anything_is_known(
        self, service: Service, channel: grpc.aio.Channel
    ) -> None:
        """case f07"""
        service.known.pools["vllm"] = None
        assert await Trigger(channel).spec() == [Spec("s0-desired-replicas", 1000)]

    async def test_a_scaler_that_starts_later_is_found(self) -> None:
        """case f07"""
        service = Service(Known(vllm=FOUR))
        async with connect(service.target) as channel:
            trigger = Trigger(channel)
            assert (await refusal(trigger.spec()))[0] == "UNAVAILABLE"
            async with pushing(trigger) as pushes:
                await eventually(lambda: pushes.ends, "a push stream that failed")
                await service.start()
                await eventually(lambda: pushes.heard == [True], "the first push")
            assert await trigger.replicas(1) == 4
        await service.stop()


class TestWhichPool:
    ALL = ("spec", "metrics", "active", "push")

    @staticmethod
    def ask(trigger: Trigger, method: str) -> Any:
        asking: dict[str, Callable[[], Any]] = {
            "spec": trigger.spec,
            "metrics": lambda: trigger.metrics_and_activity("s0-desired-replicas"),
            "active": trigger.is_active,
            "push": lambda: trigger._push(trigger._ref).read(),
        }
        return asking[method]()

    @pytest.mark.parametrize("method", ALL)
    async def test_one_that_there_is_not_is_refused_with_those_there_are(
        self, service: Service, channel: grpc.aio.Channel, method: str
    ) -> None:
        service.known.set("chat", 2)
        trigger = Trigger(channel, {"pool": "vlm"})
        words = "no pool 'vlm' gets recommendations here; those that do: chat, vllm"
        assert await refusal(self.ask(trigger, method)) == ("INVALID_ARGUMENT", words)

    @pytest.mark.parametrize("metadata", [{}, {"pool": ""}, {"Pool": "chat", "scalerAddress": "extproc:9002"}])
    async def test_of_several_one_must_be_named(
        self, service: Service, channel: grpc.aio.Channel, metadata: dict[str, str]
    ) -> None:
        service.known.set("chat", 2)
        words = 'say in the trigger\'s metadata which "pool" is meant: chat, vllm'
        assert await refusal(Trigger(channel, metadata).spec()) == ("INVALID_ARGUMENT", words)

    @pytest.mark.parametrize("metadata", [{}, {"pool": ""}, {"scalerAddress": "extproc:9002", "x": "y"}])
    async def test_the_only_one_need_not_be_named(self, channel: grpc.aio.Channel, metadata: dict[str, str]) -> None:
        assert await Trigger(channel, metadata).replicas(1) == 4

    async def test_without_any_the_setting_is_named(self, service: Service, channel: grpc.aio.Channel) -> None:
        service.known.pools.clear()
        words = 'no pool gets recommendations here: give one the section "autoscale" in the settings'
        assert await refusal(Trigger(channel, {"pool": "vllm"}).spec()) == ("INVALID_ARGUMENT", words)

    async def test_scaled_objects_on_one_connection_get_each_their_own(
        self, service: Service, channel: grpc.aio.Channel
    ) -> None:
        names = [f"pool-{number}" for number in range(8)]
        for number, name in enumerate(names):
            service.known.set(name, number)
        triggers = [
            Trigger(channel, {"pool": name}, name=f"object-{name}", index=number) for number, name in enumerate(names)
        ]
        async with contextlib.AsyncExitStack() as stack:
            pushes = [await stack.enter_async_context(pushing(trigger)) for trigger in triggers]
            found = await asyncio.gather(*[trigger.replicas(100) for trigger in triggers for _ in range(5)])
            assert found == [number for number in range(8) for _ in range(5)]
            await eventually(lambda: all(each.heard for each in pushes), "a push on each stream")
        assert [each.heard for each in pushes] == [[False], *[[True]] * 7]

    async def test_another_metric_is_refused(self, channel: grpc.aio.Channel) -> None:
        words = "there is no metric 'queue-length' here, only \"desired-replicas\""
        assert await refusal(Trigger(channel).metrics_and_activity("s0-queue-length")) == ("INVALID_ARGUMENT", words)

    async def test_a_refusal_is_logged_once(
        self, service: Service, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(3):
            await refusal(Trigger(channel, {"pool": "a\nb"}).spec())
        (line,) = [record.getMessage() for record in caplog.records if record.name == keda.__name__]
        assert line.startswith("KEDA: ScaledObject 'llm/vllm': no pool 'a\\nb' gets recommendations here")


class TestPushes:
    async def test_the_state_comes_at_once_and_then_each_change(
        self, service: Service, channel: grpc.aio.Channel
    ) -> None:
        async with pushing(Trigger(channel)) as pushes:
            for desired, heard in ((4, [True]), (0, [True, False]), (2, [True, False, True])):
                service.known.set("vllm", desired)
                await eventually(lambda heard=heard: pushes.heard == heard, f"{heard}")
            service.known.set("vllm", 7)  # no change of what is pushed
            service.known.set("vllm", 0)
            await eventually(lambda: pushes.heard == [True, False, True, False], "a change")
        assert not pushes.ends

    async def test_what_becomes_unknown_is_not_pushed(self, service: Service, channel: grpc.aio.Channel) -> None:
        service.known.pools["vllm"] = None
        async with pushing(Trigger(channel)) as pushes:
            await asyncio.sleep(3 * LOOK_S)
            assert not pushes.heard
            service.known.set("vllm", 2)
            await eventually(lambda: pushes.heard == [True], "a push once something is known")
            service.known.set("vllm", 0, stale=True)
            await asyncio.sleep(3 * LOOK_S)
            assert pushes.heard == [True]
            service.known.set("vllm", 0)
            await eventually(lambda: pushes.heard == [True, False], "the change")
        assert not pushes.ends

    async def test_after_a_restart_keda_comes_back(self, service: Service, channel: grpc.aio.Channel) -> None:
        async with pushing(Trigger(channel)) as pushes:
            for times in (1, 2, 3):
                await eventually(lambda times=times: len(pushes.heard) == times, "a push")
                await service.stop()
                await service.start()
            await eventually(lambda: len(pushes.heard) == 4, "a push")
        assert grpc.StatusCode.OK not in pushes.ends
        assert await Trigger(channel).replicas(1) == 4

    async def test_a_stream_that_is_let_go_is_opened_again_soon(
        self, service: Service, channel: grpc.aio.Channel
    ) -> None:
        """KEDA's pause doubles with each stream that breaks, and is short again only after one that ended in order."""
        async with pushing(Trigger(channel)) as pushes:
            for times in range(1, 4):
                await eventually(lambda times=times: len(pushes.heard) == times, "a push")
                service.scaler.let_go()
                await eventually(lambda times=times: pushes.ends.count(grpc.StatusCode.OK) >= times, "the end")
                await service.stop()
                await service.start()
            orderly = [pause for end, pause in zip(pushes.ends, pushes.retries_s, strict=True) if end.name == "OK"]
            assert set(orderly) == {RETRY_S}
        assert RETRY_S < LONGEST_RETRY_S

    async def test_a_client_that_goes_leaves_nothing_behind(self, service: Service, channel: grpc.aio.Channel) -> None:
        def streams() -> int:
            return sum(1 for task in asyncio.all_tasks() if "stream_is_active" in repr(task.get_coro()) + repr(task))

        before = len(asyncio.all_tasks())
        call = Trigger(channel)._push(Trigger(channel)._ref)
        assert (await call.read()).result
        call.cancel()
        await eventually(lambda: len(asyncio.all_tasks()) <= before, "the end of its task")
        assert not streams()

    async def test_the_specification_is_not_streamed(self, channel: grpc.aio.Channel) -> None:
        assert not await Trigger(channel).streams_its_specification()


async def test_a_request_that_does_not_decode_says_so(channel: grpc.aio.Channel) -> None:
    for method in ("GetMetricSpec", "GetMetrics", "IsActive"):
        asking = channel.unary_unary(f"/externalscaler.ExternalScaler/{method}")(b"\xff")
        assert await refusal(asking) == ("INTERNAL", "the request does not decode")


async def test_keda_with_the_certificates_of_its_trigger_authentication_is_served(tmp_path: Path) -> None:
    ca, client_ca = authority(tmp_path, "ca"), authority(tmp_path, "client-ca")
    server, client = signed_by(ca, tmp_path, "server"), signed_by(client_ca, tmp_path, "client")
    tls = TlsSettings(cert_file=str(server.cert), key_file=str(server.key), client_ca_file=str(client_ca.cert))
    service = Service(Known(vllm=FOUR), tls=tls)
    await service.start()
    # caCert, tlsClientKey and tlsClientCert
    credentials = grpc.ssl_channel_credentials(*[path.read_bytes() for path in (ca.cert, client.key, client.cert)])
    async with connect(service.target, credentials) as channel, pushing(Trigger(channel)) as pushes:
        assert await Trigger(channel).replicas(1) == 4
        await eventually(lambda: pushes.heard == [True], "a push")
    await service.stop()
