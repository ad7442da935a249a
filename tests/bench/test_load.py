"""The load generator's result is read as it is, and a result that proves nothing is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.common.process import ArmFailedError
from bench.overhead import load

LINE = (
    '{"requests":6004,"duration_us":2001000,"p50_us":1250,"p99_us":9100,'
    '"connect":0,"read":0,"write":0,"status":0,"timeout":0}'
)


def test_result_line_is_found_among_wrks_own_report() -> None:
    result = load.parse_result(f"Running 2s test @ http://127.0.0.1:1\n  1 threads and 1 connections\n\n{LINE}\n")

    assert result.requests == 6004
    assert result.rps == pytest.approx(6004 / 2.001)
    assert (result.p50_ms, result.p99_ms) == (1.25, 9.1)
    assert (result.bad_status, result.socket_errors) == (0, 0)


def test_every_kind_of_socket_error_is_counted() -> None:
    line = LINE.replace('"connect":0,"read":0,"write":0', '"connect":1,"read":2,"write":4').replace(
        '"timeout":0', '"timeout":8'
    )

    assert load.parse_result(line).socket_errors == 15


@pytest.mark.parametrize("output", ["", "unable to connect to 127.0.0.1:1", LINE.replace("6004", "0")])
def test_output_without_a_finished_request_is_an_error(output: str) -> None:
    with pytest.raises(ValueError, match="wrk"):
        load.parse_result(output)


def test_a_wrong_status_fails_the_arm_and_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def answer(*args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, LINE.replace('"status":0', '"status":3'), "")

    monkeypatch.setattr(subprocess, "run", answer)

    with pytest.raises(
        ArmFailedError, match=r"some-arm: of 6004 answers at 4096 bytes, concurrency 32, 3 had a status"
    ):
        load.run_load("some-arm", 1, tmp_path / "bodies", 4096, 32, 1, tmp_path / "script")


def test_missing_wrk_without_root_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    with pytest.raises(RuntimeError, match="apt-get install wrk"):
        load.ensure_wrk(lambda text: None)
