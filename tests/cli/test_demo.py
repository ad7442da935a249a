"""`extproc demo`, as a machine without a terminal runs it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cli.command import Command


def _env(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(tmp_path)}


@pytest.mark.envoy
@pytest.mark.slow
async def test_every_check_of_the_demo_holds_and_nothing_is_left_behind(tmp_path: Path) -> None:
    """R1, R3, R4: what is cached is used, busy servers are avoided, a dead one is worked around, and the service's own
    death is survived."""
    async with Command("demo", "--check", "--seconds", "4", env=_env(tmp_path)) as command:
        code = await command.exit_code(timeout_s=110.0)
    assert code == 0, command.output
    lines = command.output.splitlines()
    assert sum(line.startswith("ok   ") for line in lines) == 18
    assert not [line for line in lines if line.startswith("FAIL")]
    assert "all 18 checks held" in command.output
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - nothing waits here


@pytest.mark.envoy
async def test_ctrl_c_in_the_middle_ends_everything_and_leaves_nothing(tmp_path: Path) -> None:
    async with Command("demo", "--check", env=_env(tmp_path)) as command:
        await command.says("1 of 6")
        command.signal(signal.SIGINT)
        assert await command.exit_code() == 130
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - nothing waits here


async def test_a_missing_package_is_told_with_its_cure() -> None:
    blocked = "import sys; sys.modules['openai'] = None; from extproc.cli import main; main()"
    async with Command("demo", "--check", code=blocked) as command:
        assert await command.exit_code() == 1
    assert command.output.strip() == (
        'extproc: The demo needs the openai package. Install it with: pip install "vllm-extproc[demo]"'
    )


async def test_help_lists_every_command_without_loading_grpc() -> None:
    code = "import sys; from extproc.cli import main\ntry: main()\nfinally: print('grpc' in sys.modules)"
    async with Command("--help", code=code) as command:
        await command.exit_code()
    assert command.output.rstrip().endswith("False")
    for name in ("demo", "up", "check", "serve", "vllm-sim"):
        assert name in command.output
