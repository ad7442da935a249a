"""Which requests are traced, and what becomes of what is told: everything has a bound, and what is lost is counted."""

from __future__ import annotations

import threading
from random import Random

import pytest

from extproc.config.tracing_settings import TracingSettings
from extproc.decision import Rejection, RejectionReason
from extproc.note import Note
from extproc.request import RawRequest
from extproc.telemetry.tracing import BATCH, QUEUED, STATE_CHARS, Told, Traces, sampled

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
REFUSED = Rejection(RejectionReason.NO_ENDPOINTS, 503, "none")


class Sender:
    """Keeps what it is told to send; `gate` holds it up."""

    def __init__(self, *, good: bool = True) -> None:
        self.good = good
        self.batches: list[list[Told]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.busy = threading.Event()
        self.ended = False

    def send(self, batch: list[Told]) -> bool:
        self.busy.set()
        self.gate.wait(30)
        self.batches.append(batch)
        return self.good

    def give_up(self) -> None:
        self.ended = True
        self.gate.set()

    @property
    def sent(self) -> int:
        return sum(map(len, self.batches))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def traces(sender: Sender | None = None, clock: Clock | None = None, **settings: object) -> Traces:
    made = TracingSettings.model_validate({"endpoint": "http://127.0.0.1:4318"} | settings)
    return Traces(made, sender or Sender(), rng=Random(1), clock=clock or Clock())


def begin(of: Traces, parent: str | None = None, state: str | None = None, **metadata: str) -> Note | None:
    """`parent`, `state`: of the request's headers; `metadata`: of the gRPC call."""
    headers = {"traceparent": parent, "tracestate": state}
    raw = RawRequest("POST", "/v1/completions", {name: text for name, text in headers.items() if text is not None})
    said = {name.encode(): text.encode() for name, text in metadata.items()}
    return of.begin(raw, said.get)


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        (SAMPLED, True),
        (NOT_SAMPLED, False),
        (f" {SAMPLED}\t", True),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-fe", False),
        (f"cc-{TRACE}-{SPAN}-01-what.the.future.brings", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (SAMPLED.upper(), None),
        (SAMPLED[:-1], None),
        (f"{SAMPLED},{SAMPLED}", None),
        (f"{SAMPLED}\n", None),
        ("\ud800", None),
        ("", None),
        (None, None),
        (f"cc-{TRACE}-{SPAN}-01-{'a' * 100_000}", None),
    ],
)
def test_a_traceparent_is_read_as_w3c_has_it(parent: str | None, expected: bool | None) -> None:
    assert sampled(parent) is expected


def test_a_request_of_a_sampled_trace_is_traced_as_its_child_and_one_of_another_is_not() -> None:
    of = traces(sample_ratio=0)
    note = begin(of, SAMPLED, "vendor=1")
    assert note is not None
    assert (note.parent, note.parent_state) == (SAMPLED, "vendor=1")
    assert begin(of, NOT_SAMPLED) is None
    assert begin(traces(sample_ratio=1), NOT_SAMPLED) is None


def test_a_request_without_a_trace_begins_one_by_chance() -> None:
    of = traces(sample_ratio=0.25, max_per_s=10_000)
    found = [begin(of, parent) for parent in (None, "broken") for _ in range(1000)]
    notes = [note for note in found if note is not None]
    assert 400 < len(notes) < 600
    assert {(note.parent, note.parent_state) for note in notes} == {(None, None)}
    assert not any(begin(traces(sample_ratio=0)) for _ in range(100))
    assert all(begin(traces(sample_ratio=1)) for _ in range(100))


def test_what_envoy_says_of_its_own_span_counts_before_the_client() -> None:
    nearer = f"00-{TRACE}-{'1' * 16}-01"
    note = begin(traces(), SAMPLED, "vendor=1", traceparent=nearer)
    assert note is not None
    assert (note.parent, note.parent_state) == (nearer, None)
    assert begin(traces(), SAMPLED, traceparent=NOT_SAMPLED) is None


def test_a_state_that_is_too_long_is_dropped_and_the_trace_goes_on() -> None:
    note = begin(traces(), SAMPLED, "a=" + "b" * STATE_CHARS)
    assert note is not None
    assert (note.parent, note.parent_state) == (SAMPLED, None)


def test_no_more_than_so_many_a_second_are_traced_whatever_clients_ask_for() -> None:
    clock = Clock()
    of = traces(clock=clock, max_per_s=10)
    assert sum(begin(of, SAMPLED) is not None for _ in range(100)) == 10
    assert of.counts()["over_rate"] == 90
    clock.now = 0.5
    assert sum(begin(of, SAMPLED) is not None for _ in range(100)) == 5
    clock.now = 100.0
    assert sum(begin(of, SAMPLED) is not None for _ in range(100)) == 10


def test_what_waits_is_sent_in_messages_of_bounded_size_and_at_the_end_too() -> None:
    sender = Sender()
    of = traces(sender)
    for _ in range(2 * BATCH + 1):
        of.end(Note(), REFUSED, 0.001)
    of.start(every_s=3600)
    of.stop(within_s=30)
    assert sorted(map(len, sender.batches)) == [1, BATCH, BATCH]
    assert of.counts() == {"exported": 2 * BATCH + 1, "failed": 0, "queue_full": 0, "over_rate": 0}
    assert sender.ended


def test_a_full_message_is_sent_at_once() -> None:
    sender = Sender()
    of = traces(sender)
    of.start(every_s=3600)
    try:
        for _ in range(BATCH):
            of.end(Note(), REFUSED, 0.001)
        assert sender.busy.wait(30)
    finally:
        of.stop(within_s=30)
    assert sender.sent == BATCH


def test_a_receiver_that_hangs_costs_a_bounded_queue_and_what_does_not_fit_is_counted() -> None:
    sender = Sender()
    sender.gate.clear()
    of = traces(sender)
    of.start(every_s=3600)
    for _ in range(BATCH):
        of.end(Note(), REFUSED, 0.001)
    assert sender.busy.wait(30)  # it holds a message
    for _ in range(QUEUED + 50):
        of.end(Note(), REFUSED, 0.001)
    assert of.counts()["queue_full"] == 50
    of.stop(within_s=0.01)  # gives up, which frees it
    of._thread.join(30)  # type: ignore[union-attr]
    counts = of.counts()
    assert counts["exported"] + counts["failed"] == BATCH + QUEUED


def test_what_cannot_be_sent_is_counted_and_a_bug_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Sender):
        def send(self, batch: list[Told]) -> bool:
            super().send(batch)
            if len(self.batches) == 1:
                raise RuntimeError("boom")
            return False

    of = traces(Broken())
    for _ in range(BATCH + 1):
        of.end(Note(), REFUSED, 0.001)
    of.start(every_s=3600)
    of.stop(within_s=30)
    assert of.counts()["failed"] == BATCH + 1
    assert [record.message for record in caplog.records] == [f"bug in the export of traces; {BATCH} spans are lost"]


def test_it_can_be_stopped_before_it_was_started() -> None:
    sender = Sender()
    traces(sender).stop()
    assert sender.ended


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://x.example/otlp/v1/traces?a=b", "https://x.example/otlp/v1/traces?a=b"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_the_path_of_the_receiver_need_not_be_written(given: str, url: str) -> None:
    assert TracingSettings(endpoint=given).url == url


@pytest.mark.parametrize(
    "given", ["", "127.0.0.1:4318", "grpc://x:4317", "http://", "http://x:99999", "http://[x", "http:x"]
)
def test_what_is_no_url_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="is not a URL of OTLP over HTTP"):
        TracingSettings(endpoint=given)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_HEADERS") as refused:
        TracingSettings(endpoint="https://user:hunter2@x.example")
    assert "hunter2" not in str(refused.value.errors(include_input=False))  # type: ignore[attr-defined]
