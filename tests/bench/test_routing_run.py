"""A batch runs real arms side by side and gives their rows; an interruption leaves nothing running."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.common.process import with_project_on_path
from bench.routing.results import Cell
from bench.routing.run import Batch, Runner

pytestmark = pytest.mark.envoy


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    pending = [pid]
    while pending:
        for task in Path(f"/proc/{pending.pop()}/task").glob("*/children"):
            try:
                children = {int(child) for child in task.read_text().split()} - found
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            found |= children
            pending += children
    return found


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_batch_of_two_arms_gives_two_rows_of_the_same_requests(tmp_path: Path) -> None:
    cells = tuple(Cell("W8", arm, 1, 2.0, 1.0) for arm in ("extproc-least-loaded", "envoy-round-robin"))
    finished = Runner(tmp_path).run(Batch(cells))
    assert finished.failures == ()
    ours, envoy = finished.rows
    assert [row.arm for row in finished.rows] == [cell.arm for cell in cells]
    assert [row.note for row in finished.rows] == ["", ""]
    assert ours.requests == envoy.requests > 10
    assert (ours.errors, ours.at_once) == (0, 2)
    for row in finished.rows:
        assert 0 < row.ttft_p50_s <= row.ttft_p90_s <= row.ttft_p99_s
        assert row.max_over_mean >= 1
        assert row.output_tok_s > 0
        assert row.cpu_ratio > 0


@pytest.mark.slow
def test_a_cell_that_fails_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    cells = (Cell("W8", "envoy-round-robin", 1, 1.0, 1.0), Cell("W8", "no-such-arm", 1, 1.0, 1.0))
    finished = Runner(tmp_path).run(Batch(cells))
    assert [row.arm for row in finished.rows] == ["envoy-round-robin"]
    ((cell, why),) = finished.failures
    assert cell.arm == "no-such-arm"
    assert "no-such-arm" in why


@pytest.fixture
def heeding_sigint() -> Iterator[None]:
    """What a shell runs in the background ignores SIGINT, and so does what that starts: tests are run so, too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("heeding_sigint")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_stops_everything(tmp_path: Path, number: signal.Signals) -> None:
    options = ["--workloads", "W8", "--arms", "extproc-least-loaded", "--seeds", "1", "--seconds", "60"]
    run = subprocess.Popen(
        [sys.executable, "-m", "bench.routing", *options, "--out", str(tmp_path / "rows.json")],
        cwd=tmp_path,
        env={**with_project_on_path(), "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: any(tmp_path.glob("bench-routing-*/*/go")), "the clients begin")
        started = descendants(run.pid)
        assert len(started) >= 4  # the worker, the servers, the service, Envoy
        run.send_signal(number)
        assert run.wait(90) == 130
    finally:
        run.kill()
        run.wait()
    eventually(lambda: not any(runs(pid) for pid in started), "all that was started is gone", within_s=30)
    assert not any(tmp_path.glob("bench-routing-*"))
