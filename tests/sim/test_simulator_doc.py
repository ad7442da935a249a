"""The Python in docs/simulator.md runs."""

from __future__ import annotations

import asyncio
import re
import textwrap
from pathlib import Path

import pytest

from extproc.sim.faults import Faults

DOC = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()


def test_the_virtual_time_example_runs_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", DOC, re.DOTALL) if "Engine(" in block]
    exec(code, {})
    out = capsys.readouterr().out
    assert out.startswith("FirstToken(request_id='r1'")
    assert "Finished(request_id='r1'" in out


def test_the_server_example_runs_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", DOC, re.DOTALL) if "async with" in block]
    scope: dict[str, object] = {}
    exec(f"async def main():\n{textwrap.indent(code, '    ')}", scope)
    asyncio.run(scope["main"]())  # type: ignore[operator]
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")


def test_every_fault_is_in_the_table() -> None:
    missing = [name for name in Faults().as_dict() if f"`{name}`" not in DOC]
    assert missing == []
