"""The file that a load test writes and the service reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from extproc.autoscale.profile import Profile

ROWS = [
    {"rate_per_s": rate, "seconds": 60.0, "requests": int(60 * rate), "met": rate < 3, "waiting": rate - 1.0,
     "running": 4 * rate, "ttft_p50_s": 0.2 * rate}
    for rate in (1.0, 2.0, 3.0)
]  # fmt: skip
GOLDEN = Path(__file__).parents[1] / "golden" / "calibrate"
GIVEN: dict[str, Any] = {
    "version": 1,
    "made_at": "2026-01-01T00:00:00Z",
    "ttft_p99_target_s": 1.0,
    "knee_per_s": 2.0,
    "server": {"model": "m", "kv_tokens": 10_000},
    "lengths": {"prompt_tokens": 800, "uncached_tokens": 500, "output_tokens": 100},
    "steps": ROWS,
    "told_by_a_newer_version": {},
}


def test_one_of_a_real_vllm_tells_what_its_server_may_have() -> None:
    """Of `extproc calibrate`, five rates; what it could not serve within the target is past the knee."""
    profile = Profile.model_validate_json((GOLDEN / "vllm-0.32-cpu.json").read_bytes())
    assert (profile.server.engine, profile.server.version, profile.server.kv_tokens) == ("vllm", "0.32.0", 1_048_576)
    assert [row.rate_per_s for row in profile.steps if row.met] == [2.0, profile.knee_per_s]
    assert profile.missed_per_s == min(row.rate_per_s for row in profile.steps if not row.met)
    assert all(row.errors == 0 for row in profile.steps if row.met)
    at_the_knee, growing = profile.calibration.led(0.0, 0.0), profile.calibration.led(0.005, 166.0)
    assert (at_the_knee.rate_per_s, growing.rate_per_s) == (4.0, pytest.approx(4.0 - 0.005 * 166.0))
    for name in ("waiting", "running", "prefill_tokens_per_s"):
        assert getattr(growing, name) < getattr(at_the_knee, name)


def test_it_is_the_table_of_the_thresholds() -> None:
    profile = Profile.model_validate(GIVEN)
    at_the_knee = profile.calibration.led(0.0, 0.0)
    assert (at_the_knee.rate_per_s, at_the_knee.waiting, at_the_knee.running) == (2.0, 1.0, 8.0)
    assert at_the_knee.ttft_s == 0.4
    assert at_the_knee.uncached_tokens == 500
    assert profile.calibration.kv_tokens == 10_000


def test_what_is_written_can_be_read() -> None:
    profile = Profile.model_validate(GIVEN)
    assert Profile.model_validate_json(profile.model_dump_json()) == profile


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"steps": []}, {"steps": ROWS[::-1]}, {"knee_per_s": float("nan")}, {"server": {}}]
)
def test_what_is_none_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Profile.model_validate(GIVEN | change)
