"""`extproc top` in a terminal of its own, a pseudo-terminal, and without one."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from extproc.cli.main import app
from tests.cli.command import ENTRY
from tests.support.envoy_config import free_port
from tests.support.status_fleet import Advice, Made, advised
from tests.support.waiting import eventually

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9])")
_HOME = "\x1b[H"  # each picture begins there


class Terminal:
    """A command in a terminal of so many columns and lines. `written` grows."""

    def __init__(self) -> None:
        self.written = ""
        self.process: asyncio.subprocess.Process
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._main = -1

    @property
    def screen(self) -> str:
        """The last picture that was drawn whole, without colours."""
        pictures = self.written.split(_HOME)[1:]
        whole = [each for each in pictures if "quit" in each or "extproc top:" in each]
        return _ESCAPES.sub("", whole[-1]) if whole else ""

    def has(self, text: str) -> bool:
        """Whether it is on the screen; several spaces count as one."""
        return text in " ".join(self.screen.split())

    async def shows(self, text: str) -> None:
        try:
            await eventually(lambda: self.has(text), text, timeout_s=90)
        except AssertionError:
            raise AssertionError(f"{text!r} did not come to be on the screen:\n{self.screen}") from None

    def press(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._main)

    async def ended(self) -> int:
        code = await asyncio.wait_for(self.process.wait(), 90)
        await asyncio.sleep(0)
        self._read()
        return code

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # nothing there, or the other end is closed
            while data := os.read(self._main, 65536):
                self.written += self._decoder.decode(data)


@contextlib.asynccontextmanager
async def terminal(*arguments: str, columns: int = 100, lines: int = 30) -> AsyncIterator[Terminal]:
    made = Terminal()
    made._main, other = pty.openpty()
    os.set_blocking(made._main, False)
    made.resize(columns, lines)
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    loop = asyncio.get_running_loop()
    loop.add_reader(made._main, made._read)
    try:
        made.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ENTRY, "top", *arguments),
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            env=environment | {"TERM": "xterm-256color"},
            cwd=Path(__file__).parents[2],
        )
        yield made
    finally:
        if made.process.returncode is None:
            made.process.kill()
            await made.process.wait()
        loop.remove_reader(made._main)
        os.close(made._main)
        os.close(other)


def fleet() -> Made:
    made = Made(Advice(vllm=advised()), vllm=40, other=2)
    made.hour(10)
    made.trouble()
    return made


async def test_it_is_drawn_sorted_scrolled_and_ended_by_keys() -> None:
    async with fleet().served() as url, terminal("--admin", url, "--interval", "0.3") as top:
        before = top.modes()
        await top.shows("10.0.0.3:8000 unhealthy")
        await top.shows("of 40")
        assert "state▲" in top.screen
        top.press(">")
        await top.shows("waiting▼")
        top.press("r")
        await top.shows("waiting▲")
        top.press("<<")
        await top.shows("endpoint▲")
        top.press("\x1b[B\x1b[6~")
        await top.shows("endpoints 12 to")
        top.press("p")
        await top.shows("10.1.0.1:8000")
        top.press(" ")
        await top.shows("paused")
        top.resize(60, 12)
        await eventually(lambda: max(map(len, top.screen.splitlines()), default=0) <= 60, "the picture is smaller")
        top.press("q")
        assert await top.ended() == 0
        assert top.written.endswith("\x1b[?25h\x1b[?1049l")  # the cursor, and what was there before
        assert top.modes() == before


async def test_it_says_what_is_wrong_while_the_service_is_away_and_goes_on_when_it_is_back() -> None:
    port = free_port()
    async with terminal("--admin", f"127.0.0.1:{port}", "--interval", "0.2", columns=120) as top:
        await top.shows(f"extproc top: no service at http://127.0.0.1:{port} (Connection refused)")
        async with fleet().served(port=port):
            await top.shows("10.0.0.3:8000 unhealthy")
            assert not top.has("no answer, shown is")
        await top.shows("no answer, shown is what it said last: no service at")
        assert top.has("10.0.0.3:8000 unhealthy")
        other = Made(vllm=1)
        other.hour(1, picks=0)
        async with other.served(port=port):
            await top.shows("pool vllm 1 ready")
            assert not top.has("no answer, shown is")
            top.press("q")
            assert await top.ended() == 0


async def test_ctrl_c_and_sigterm_leave_the_terminal_as_it_was() -> None:
    async with fleet().served() as url:
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            async with terminal("--admin", url) as top:
                before = top.modes()
                await top.shows("10.0.0.3:8000")
                top.process.send_signal(number)
                assert await top.ended() == code
                assert top.written.endswith("\x1b[?25h\x1b[?1049l")
                assert top.modes() == before


async def printed(*arguments: str) -> tuple[int, str]:
    """Exit status and output (both streams) of the command where there is no terminal."""
    result = await asyncio.to_thread(CliRunner().invoke, app, ["top", *arguments])
    return result.exit_code, result.output


async def test_where_there_is_no_terminal_all_is_printed_once() -> None:
    async with fleet().served() as url:
        code, output = await printed("--admin", url, "--sort", "endpoint")
    assert code == 0
    assert "\x1b" not in output
    rows = [line.split()[0] for line in output.splitlines() if line.startswith(("10.0.", "10.1."))]
    assert rows[:2] == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert len(rows) == 42


async def test_printed_once_in_a_terminal_too() -> None:
    async with fleet().served() as url, terminal("--admin", url, "--once", columns=90) as top:
        assert await top.ended() == 0
        text = _ESCAPES.sub("", top.written)
        assert "\x1b[?1049h" not in top.written
        assert "10.0.0.40:8000" in text
        assert max(map(len, text.splitlines())) <= 90


async def test_mistakes_are_told_with_the_cure() -> None:
    port = free_port()
    code, output = await printed("--admin", f"127.0.0.1:{port}")
    assert code == 5
    assert f"extproc top: no service at http://127.0.0.1:{port} (Connection refused)" in output
    code, output = await printed("--sort", "wating")
    assert code == 2
    assert '"wating"; there are: endpoint, state, waiting' in re.sub(r"[│\s]+", " ", output)

    def another(_since: float | None) -> dict[str, Any]:
        return {"some": "thing"}

    async with Made(vllm=1).served(another) as url:
        code, output = await printed("--admin", url)
    assert code == 5
    assert "is not this service, or another version of it" in output
