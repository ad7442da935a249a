"""CPU time is read from /proc as the kernel writes it, and windows become one row by their medians."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.common import process
from bench.common.http import parse_envoy_stats
from bench.common.machine import parse_machine_cpu
from bench.common.process import CLOCK_TICKS_PER_S, ArmFailedError
from bench.overhead.arms import check_picks
from bench.overhead.measure import Cell, Window, median_row


def window(rps: float, service_cpu_us: float | None = 400.0) -> Window:
    return Window(
        rps=rps,
        p50_ms=10_000 / rps,
        p99_ms=90_000 / rps,
        service_cpu_us=service_cpu_us,
        envoy_cpu_us=None,
        servers_cpu_us=80.0,
        client_cpu_us=20.0,
        other_cpu_ratio=0.1,
        server_requests=1.0,
        served=(1, 1, 1, 1),
        without_pick=0,
    )


def test_a_row_is_the_median_of_each_column() -> None:
    row = median_row("arm", Cell(4, 32), [window(1000, 500), window(4000, 300), window(2000, 400)])

    assert (row.arm, row.body_kb, row.concurrency) == ("arm", 4, 32)
    assert (row.rps, row.p50_ms, row.p99_ms, row.service_cpu_us) == (2000, 5, 45, 400)
    assert row.envoy_cpu_us is None


def test_an_arm_without_a_service_has_no_service_cpu_rather_than_zero() -> None:
    assert median_row("arm", Cell(4, 1), [window(1000, None)]).service_cpu_us is None


def test_cpu_of_a_process_whose_name_holds_spaces_and_parentheses() -> None:
    after_name = ["S", *["0"] * 10, "150", "50", "7", "3", *["0"] * 30]

    assert process.parse_stat_cpu_s(f"42 (a (b) c) {' '.join(after_name)}") == 210 / CLOCK_TICKS_PER_S


def test_machine_cpu_is_that_of_processes_without_idle_time_and_interrupts() -> None:
    busy, cores = parse_machine_cpu("cpu  10 20 30 1000 500 1 2 3 0 0\ncpu0 1\ncpu1 1\nintr 5\n")

    assert busy == 63 / CLOCK_TICKS_PER_S
    assert cores == 2


def test_envoy_stats_leave_histograms_out() -> None:
    text = "http.x.ext_proc.streams_started: 12\nhttp.x.rq_time: P0(nan,1.0) P50(nan,1.05)\n"

    assert parse_envoy_stats(text) == {"http.x.ext_proc.streams_started": 12}


def test_requests_that_did_not_reach_the_service_fail_the_arm() -> None:
    with pytest.raises(ArmFailedError, match="100 requests, but Envoy opened only 60 ext_proc streams"):
        check_picks("arm", {"streams_started": 40}, {"streams_started": 100}, 100)


@pytest.mark.parametrize("counter", ["spurious_msgs_received", "rejected_header_mutations"])
def test_answers_that_envoy_threw_away_fail_the_arm(counter: str) -> None:
    with pytest.raises(ArmFailedError, match=counter):
        check_picks("arm", {}, {"streams_started": 100, counter: 1}, 100)


def test_a_rare_late_pick_is_counted_and_many_fail_the_arm() -> None:
    assert check_picks("arm", {}, {"streams_started": 1000, "failure_mode_allowed": 5}, 1000) == 5
    with pytest.raises(ArmFailedError, match="11 of 1000 requests went without a pick"):
        check_picks("arm", {}, {"streams_started": 1000, "failure_mode_allowed": 11}, 1000)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[process.Process]:
    started = process.start("sleeper", [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path)
    yield started
    started.ask_to_stop()
    started.stop()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_frozen_process_stops_when_asked_to(sleeper: process.Process) -> None:
    sleeper.freeze()
    process.wait_until("it is frozen", lambda: state(sleeper.pid) == "T", [sleeper], timeout_s=10)

    sleeper.ask_to_stop()
    sleeper.stop()

    assert sleeper.popen.returncode == -15


def test_waiting_for_a_program_that_has_died_shows_its_last_words(tmp_path: Path) -> None:
    started = process.start("dies", [sys.executable, "-c", "raise SystemExit('no such pool')"], tmp_path)
    started.popen.wait()

    with pytest.raises(ArmFailedError, match=r"dies exited with code 1[\s\S]*no such pool"):
        process.wait_until("it answers", lambda: False, [started])


def test_cpu_of_children_counts(tmp_path: Path) -> None:
    burn = "import time; t = time.process_time()\nwhile time.process_time() - t < 0.2: pass"
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]]); input()"
    command = [sys.executable, "-c", parent, burn]
    popen = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    started = process.Process("parent", popen, Path(os.devnull))
    try:
        process.wait_until("the child has burned CPU", lambda: started.cpu_s() >= 0.2, [started], timeout_s=30)
    finally:
        popen.communicate(b"\n")
