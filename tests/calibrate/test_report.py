"""The page of a load test, as a person sees it."""

from __future__ import annotations

from pathlib import Path

from extproc.autoscale.profile import Lengths, Profile, Server, StepRow
from extproc.calibrate.report import html
from extproc.calibrate.result import figures, readings
from tests.support.chromium import chromium
from tests.support.programs import program


def row(rate_per_s: float, *, met: bool) -> StepRow:
    return StepRow(
        rate_per_s=rate_per_s, seconds=30, requests=2999, met=met, certain=False, over=12, waiting=0.8, running=120,
        kv_usage_ratio=0.6, prefill_tokens_per_s=14_665, hit_ratio=0.5, ttft_p50_s=0.11, ttft_p99_s=11.5,
        token_interval_p50_s=0.02, token_interval_p99_s=0.04,
    )  # fmt: skip


PROFILE = Profile(
    made_at="2026-01-01T00:00:00+00:00",
    ttft_p99_target_s=1.0,
    knee_per_s=56.6,
    server=Server(model="sim"),
    lengths=Lengths(prompt_tokens=100, output_tokens=8),
    steps=(row(28.3, met=True), row(56.6, met=True), row(113.0, met=False)),
)


def test_where_a_threshold_is_a_floor_what_was_read_is_told_too() -> None:
    low = {"waiting": 0.2, "kv_usage_ratio": 0.161}
    idle = PROFILE.model_copy(update={"steps": tuple(each.model_copy(update=low) for each in PROFILE.steps)})
    (_, least), (_, usual) = (readings(each, None, 120.0)[0] for each in (idle, PROFILE))
    told = dict(figures(least, idle.calibration))
    assert (told["waiting"], told["KV usage"]) == ("0.50 (read 0.20)", "50.0% (read 16.1%)")
    assert "<td>50.0% (read 16.1%)</td>" in html(idle, readings(idle, None, 120.0), "pools:", [])
    told = dict(figures(usual, PROFILE.calibration))
    assert (told["waiting"], told["KV usage"]) == ("0.80", "60.0%")


async def test_a_table_that_is_wider_than_the_window_scrolls_and_the_page_does_not(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(html(PROFILE, readings(PROFILE, None, 120.0), "pools:", []))
    async with chromium(program("chromium", "chromium")) as browser, browser.page() as shown:
        await shown.look(width=1100)
        await shown.open(page.as_uri())
        assert await shown.run("document.documentElement.scrollWidth") == 1100
        tables = "[...document.querySelectorAll('table')].map(each => each.parentElement)"
        wide = f"{tables}.filter(each => each.scrollWidth > each.clientWidth)"
        assert await shown.run(f"{wide}.map(each => getComputedStyle(each).overflowX)") == ["auto"]  # the steps
