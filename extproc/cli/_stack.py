"""How do the service and an Envoy in front of it start, and end, as one?

Start: the service first, since Envoy's first health check decides whether it asks us. End: Envoy closes its ports, what
runs ends (up to `shutdown_grace_s`), then Envoy goes, then the service: so no request is ever routed blindly, and none
is cut that ends in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
from ruamel.yaml import YAML

from extproc.app import App
from extproc.cli import _ports
from extproc.cli._envoy import EnvoyError, EnvoyProcess
from extproc.cli._envoy_admin import EnvoyAdmin
from extproc.config.settings import Settings

log = logging.getLogger(__name__)
envoy_log = logging.getLogger("envoy")

_START_S = 30.0  # Envoy is up in well under a second; a host of names to resolve may take longer
_POLL_S = 0.05
_NO_ADMIN = 'admin: {address: {socket_address: {address: "127.0.0.1", port_value: 0}}}'
_LOG_FORMAT = "[%l] %n: %v"
_LINE = re.compile(r"\[(?P<level>trace|debug|info|warning|error|critical)\] (?P<name>\S+): (?P<message>.*)")
_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


class StackError(Exception):
    """The two could not be started, or one ended by itself; the message says what to do."""


class Stack:
    """The service of `settings` and an Envoy that runs `envoy_yaml`. Start once, stop once."""

    def __init__(
        self,
        settings: Settings,
        envoy_yaml: Path,
        *,
        binary: Path | None = None,
        concurrency: int | None = None,
        envoy_log_level: str = "warning",
        make_app: Callable[[Settings], App] = App,
    ) -> None:
        self.settings = settings
        self.data: list[str] = []  # host:port of Envoy's data ports, once started
        self._yaml = envoy_yaml
        self._binary = binary
        self._concurrency = concurrency
        self._envoy_log_level = envoy_log_level
        self._make_app = make_app
        self._scratch = tempfile.TemporaryDirectory(prefix="extproc-")
        self._app: App | None = None
        self._service: asyncio.Task[None] | None = None
        self._stop_service = asyncio.Event()
        self._envoy: EnvoyProcess | None = None
        self._admin: EnvoyAdmin | None = None

    @property
    def app(self) -> App:
        """The service that runs now."""
        assert self._app is not None, "not started"
        return self._app

    @property
    def admin(self) -> EnvoyAdmin:
        """Envoy's admin port."""
        assert self._admin is not None, "not started"
        return self._admin

    async def start(self) -> None:
        """Start both; returns when Envoy serves.

        Raises:
            StackError: a port is taken, or Envoy did not come up.
            ListenError, EnvoyError: of the part that failed.
        """
        document = YAML(typ="safe").load(self._yaml)
        for what, host, port in _ports.wanted(document):
            if _ports.taken(host, port):
                raise StackError(f"{self._yaml}: {what} wants port {port}, where something else listens already")
        await self.start_service()
        await self._start_envoy(has_admin=bool(document.get("admin")))

    async def start_service(self) -> None:
        """Start the service; returns when its ports are open. For use after `kill_service` too."""
        app = self._app = self._make_app(self.settings)
        started, self._stop_service = asyncio.Event(), asyncio.Event()
        self._service = asyncio.create_task(app.run(self._stop_service, lambda _: started.set()), name="service")
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait((waiting, self._service), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._service.done():
            self._service.result()

    async def kill_service(self) -> None:
        """End the service as a crash would: open streams are reset. Envoy stays."""
        if self._service is not None:
            self._service.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._service
            self._service = None

    async def wait(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set.

        Raises:
            EnvoyError: Envoy ended by itself.
            BaseException: what ended the service.
        """
        assert self._envoy is not None, "not started"
        assert self._service is not None, "not started"
        waiting = asyncio.create_task(stop.wait())
        envoy = asyncio.create_task(self._envoy.wait())
        await asyncio.wait((waiting, envoy, self._service), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if envoy.done():
            raise self._envoy.failure()
        envoy.cancel()
        if self._service.done():
            self._service.result()
            raise StackError("the service ended by itself")

    async def wait_envoy(self) -> None:
        """Raises EnvoyError when Envoy has ended by itself."""
        assert self._envoy is not None, "not started"
        await self._envoy.wait()
        raise self._envoy.failure()

    async def stop(self) -> None:
        """End both in order; whatever was started."""
        if self._envoy is not None:
            if self._envoy.running:
                await self._drain()
            await self._envoy.stop()
        if self._admin is not None:
            await self._admin.close()
        if self._service is not None:
            # Nobody asks any more: no notice to give.
            self.app.settings = self.settings.model_copy(update={"shutdown_notice_s": 0.0, "shutdown_grace_s": 1.0})
            self._stop_service.set()
            await asyncio.wait((self._service,))
        self._scratch.cleanup()

    def kill_now(self) -> None:
        """End Envoy, and workers, without waiting; for a process that is about to exit itself."""
        if self._app is not None:
            self._app.front.kill()
        if self._envoy is not None:
            self._envoy.kill_now()
        self._scratch.cleanup()

    async def _start_envoy(self, *, has_admin: bool) -> None:
        address_file = Path(self._scratch.name) / "admin"
        options = ["--admin-address-path", str(address_file), "--log-format", _LOG_FORMAT]
        if not has_admin:
            options += ["--config-yaml", _NO_ADMIN]
        self._envoy = EnvoyProcess(
            self._yaml,
            binary=self._binary,
            concurrency=self._concurrency,
            on_line=_log_line,
            log_level=self._envoy_log_level,
            options=options,
        )
        try:
            await self._envoy.start()
        except OSError as error:
            raise StackError(f"cannot run Envoy ({self._binary}): {error.strerror}") from error
        try:
            async with asyncio.timeout(_START_S):
                while not await self._envoy_serves(address_file):
                    if not self._envoy.running:
                        await self._envoy.wait()
                        raise self._envoy.failure()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise StackError(f"Envoy was not ready after {_START_S:g} s; its log above may tell why") from None
        self.data = await self.admin.listeners()

    async def _envoy_serves(self, address_file: Path) -> bool:
        if self._admin is None:
            address = _content(address_file)
            if not address:
                return False
            self._admin = EnvoyAdmin(address)
        try:
            return await self._admin.ready()
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _drain(self) -> None:
        """Let what runs in Envoy end, up to the grace time."""
        assert self._envoy is not None
        if self._admin is None:
            return
        try:
            await self._admin.stop_accepting()
            running = await self._admin.active_requests()
            if running:
                log.info(
                    "stopping: no new connections; waiting up to %g s for %d running requests (once more: at once)",
                    self.settings.shutdown_grace_s,
                    running,
                )
            async with asyncio.timeout(self.settings.shutdown_grace_s):
                while self._envoy.running and await self._admin.active_requests():  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            log.warning("requests still ran after %g s; they are cut", self.settings.shutdown_grace_s)
        except aiohttp.ClientError as error:
            log.warning("Envoy's admin port does not answer (%s); Envoy is ended at once", error)


def _log_line(line: str) -> None:
    """One line of Envoy's log (`_LOG_FORMAT`) into ours, at its level."""
    match = _LINE.match(line)
    if match is None:
        if line:
            envoy_log.warning("%s", line)  # from before its log is set up, or the rest of a message of several lines
    elif match["message"] != "caught ENVOY_SIGTERM":  # we sent it
        envoy_log.log(_LEVELS[match["level"]], "%s: %s", match["name"], match["message"])


def _content(file: Path) -> str:
    """What stands in a small file; "" while there is none."""
    return file.read_text().strip() if file.exists() else ""


def urls(addresses: Sequence[str]) -> str:
    """Where to send requests, for a person: a wildcard address is reached by loopback."""
    return ", ".join(f"http://{address.replace('0.0.0.0', '127.0.0.1')}" for address in addresses)


__all__ = ["EnvoyError", "Stack", "StackError", "urls"]
