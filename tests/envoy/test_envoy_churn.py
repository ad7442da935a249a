"""A short churn: what `make test-churn` does for three minutes with thirty events."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.churn.__main__ import show
from tests.churn.run import Churn, Options


@pytest.mark.newest_only
async def test_half_a_minute_of_churn_cuts_only_what_was_on_a_killed_server(envoy_binary: Path, tmp_path: Path) -> None:
    options = Options(
        seed=2, seconds=22, events=8, streams=12, scale=0.08, servers=5, srv_servers=1, deadline_s=60, quick=True
    )
    said: list[str] = []
    async with Churn(options, tmp_path, binary=envoy_binary, say=said.append) as churn:
        report = await churn.run()
    assert report.missed == [], "\n".join(said) + show(report)
    found = report.as_json()
    assert found["events"] == 8
    assert found["requests"] > 50
    assert found["client_errors"] == found["cut_by_kill"] > 0
