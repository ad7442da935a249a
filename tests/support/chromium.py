"""What does a page look like, and what does it say, in a real browser? Chromium without a window, over its DevTools
protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.waiting import eventually

_START_S = 60.0  # on a busy machine
_ANSWER_S = 60.0
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # which does not work in a container, nor as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-proxy-server",
    "--remote-debugging-port=0",
)


class Page:
    """One tab. `complaints` grows: errors in scripts, what the console was told, and what its policy blocked."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self.complaints: list[str] = []
        self.requested: list[str] = []  # URLs
        self._ask = ask

    async def ask(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol."""
        return await self._ask(method, parameters)

    async def open(self, url: str) -> None:
        await self.ask("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Have the window of this size, for a person who prefers dark pages or light ones."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])

    async def run(self, script: str) -> Any:
        """The value of an expression (JSON), awaited if it is a promise. Raises AssertionError for what it throws."""
        answer = await self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, script: str, *, timeout_s: float = 30.0) -> Any:
        """Wait until an expression is true."""
        return await eventually(lambda: self.run(script), script, timeout_s=timeout_s)

    async def text(self, selector: str = "body") -> str:
        """What a person reads there."""
        found: str = await self.run(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    async def click(self, selector: str) -> None:
        await self.run(f"document.querySelector({json.dumps(selector)}).click()")

    async def picture(self, *, whole: bool = False) -> bytes:
        """A PNG of the window, or of the whole page."""
        shot = await self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])

    def hear(self, event: str, told: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(each.get("value", each)) for each in told["args"]))
        elif event == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requested.append(told["request"]["url"])


class Browser:
    """Opens tabs."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    @contextlib.asynccontextmanager
    async def page(self) -> AsyncIterator[Page]:
        """An empty tab, which is closed in the end."""
        target = (await self._connection.ask("Target.createTarget", {"url": "about:blank"}))["targetId"]
        try:
            yield await self._connection.attach(target)
        finally:
            await self._connection.ask("Target.closeTarget", {"targetId": target})


@contextlib.asynccontextmanager
async def chromium(binary: str) -> AsyncIterator[Browser]:
    """A browser."""
    folder = Path(tempfile.mkdtemp(prefix="chromium-"))
    process = await asyncio.create_subprocess_exec(
        *(binary, *_OPTIONS, f"--user-data-dir={folder}", "about:blank"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_START_S):
            url = await _debugging_url(process)
        async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket:
            connection = _Connection(socket)
            try:
                yield Browser(connection)
            finally:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(5):
                        await connection.ask("Browser.close", {})
                await connection.close()
    finally:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 10)
        if process.returncode is None:
            process.kill()
            await process.wait()
        await eventually(lambda: _removed(folder), f"{folder} is removed: what it has started may still write there")


def _removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


async def _debugging_url(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    said = []
    while line := (await process.stderr.readline()).decode(errors="replace"):
        said.append(line)
        if match := re.search(r"DevTools listening on (ws://\S+)", line):
            return match[1]
    raise AssertionError(f"Chromium ended by itself:\n{''.join(said[-20:])}")


class _Connection:
    """Commands and their answers, which may come in any order, and events in between."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._pages: dict[str, Page] = {}
        self._reading = asyncio.create_task(self._read(), name="DevTools")

    async def attach(self, target: str) -> Page:
        name = (await self.ask("Target.attachToTarget", {"targetId": target, "flatten": True}))["sessionId"]
        page = self._pages[name] = Page(lambda method, parameters: self.ask(method, parameters, name))
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.ask(f"{domain}.enable")
        return page

    async def ask(self, method: str, parameters: dict[str, Any], session: str | None = None) -> Any:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message if session is None else message | {"sessionId": session})
        async with asyncio.timeout(_ANSWER_S):
            return await answer

    async def close(self) -> None:
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading

    async def _read(self) -> None:
        async for raw in self._socket:
            message = json.loads(raw.data)
            if "id" in message:
                answer = self._waiting.pop(message["id"])
                if answer.done():
                    continue  # who asked has given up
                if "error" in message:
                    answer.set_exception(AssertionError(f"DevTools: {message['error']['message']}"))
                else:
                    answer.set_result(message["result"])
            elif message.get("sessionId") in self._pages:
                self._pages[message["sessionId"]].hear(message["method"], message["params"])
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError("Chromium has ended"))
