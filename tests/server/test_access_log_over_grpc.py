"""Envoy's access log over a real gRPC channel."""

from __future__ import annotations

from extproc.decision import Outcome
from extproc.pb import accesslog_pb2
from tests.support.ext_proc_client import BUFFERED, Client, Service, body, destination, log_batch, pick_id
from tests.support.fleet import in_flight
from tests.support.waiting import eventually


async def test_entries_end_charges_and_count_outcomes(service: Service, client: Client) -> None:
    """R1"""
    replies = [await client.stream().ask(body(b"{}", first_with_mode=BUFFERED)) for _ in range(3)]
    assert sum(in_flight(service.router)) == 3
    logs = client.logs()
    entries = [(pick_id(reply), destination(reply).split(",")[0], 200 + 300 * i) for i, reply in enumerate(replies[:2])]
    await logs.write(log_batch(*entries))
    await eventually(lambda: service.access_log.entries == 2, "both entries arrived")
    assert sum(in_flight(service.router)) == 1
    assert service.router.ledger.outcomes == {("vllm", Outcome.OK): 1, ("vllm", Outcome.FAILED): 1}
    logs.cancel()


async def test_a_batch_that_does_not_decode_is_counted_and_the_next_is_read(service: Service, client: Client) -> None:
    logs = client.logs()
    await logs.write(b"\xff\xff")
    await logs.write(log_batch(("someone-else", "10.0.0.1:8000", 200)))
    await eventually(lambda: service.access_log.entries == 1, "the good batch arrived")
    assert service.access_log.undecodable == 1
    await logs.done_writing()
    assert await logs == b""
    assert service.access_log.connected == 0


async def test_the_end_of_an_attempt_is_of_its_server_alone(service: Service, client: Client) -> None:
    """case e15"""
    reply = await client.stream().ask(body(b"{}", first_with_mode=BUFFERED))
    first = destination(reply).split(",")[0]
    batch = accesslog_pb2.StreamAccessLogsMessage.FromString(log_batch((pick_id(reply), first, 503)))
    batch.http_logs.log_entry[0].common_properties.access_log_type = accesslog_pb2.UpstreamEnd
    logs = client.logs()
    await logs.write(batch.SerializeToString())
    await eventually(lambda: service.access_log.entries == 1, "the entry arrived")
    assert sum(in_flight(service.router)) == 1
    assert not service.router.ledger.outcomes
    full = [str(m.address) for m in service.router.pools[0].members if m.health.full_until_s > 0]
    assert full == [first]
    logs.cancel()
