"""`extproc demo --autoscale`: real Envoy, the service, and `extproc scale` that starts and stops simulated servers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from extproc.cli import _demo_autoscale_config, _demo_autoscale_fleet
from extproc.cli._demo_autoscale_config import POOL
from extproc.cli._demo_autoscale_load import Load
from extproc.cli._demo_autoscale_scaler import Happening, Scaler
from extproc.cli._demo_autoscale_story import BASE_PER_S, Story
from extproc.cli._demo_autoscale_view import Picture
from extproc.cli._demo_autoscale_watch import Watch
from extproc.cli._demo_config import Ports
from extproc.cli._demo_stage import frames, play, tell, verdict
from extproc.cli._demo_story import DemoError
from extproc.cli._demo_view import Plain
from extproc.cli._stack import Stack, urls
from extproc.config import load

if TYPE_CHECKING:
    from rich.console import Console

_LOOK_S = 0.25  # between two looks at whether `extproc scale` was started again
_TOLD = frozenset({"start", "started", "ready", "drain", "stop", "stopped", "undrain", "failed", "late", "warning"})


class AutoscaleDemo:
    """One run: builds the parts, plays the story, stays up if wanted, takes everything down."""

    def __init__(self, console: Console, folder: Path, ports: Ports, *, check: bool) -> None:
        self.exit_code = 1
        self.interrupted = False
        self._console = console
        self._folder = folder
        self._ports = ports
        self._check = check
        self._stack: Stack | None = None
        self._scaler: Scaler | None = None

    def at_once(self) -> None:
        """For a second Ctrl-C: leave no process behind, wait for nothing."""
        if self._scaler is not None:
            self._scaler.kill_now()
        if self._stack is not None:
            self._stack.kill_now()
        _demo_autoscale_fleet.kill_all(self._folder)

    async def main(self, stop: asyncio.Event) -> None:
        file = self._folder / "envoy.yaml"
        script = _demo_autoscale_fleet.write_script(self._folder, self._ports.servers)
        _demo_autoscale_config.write(file, self._ports, self._folder)
        settings = load(file).settings
        assert settings is not None
        async with contextlib.AsyncExitStack() as cleanup:
            cleanup.callback(_demo_autoscale_fleet.kill_all, self._folder)
            stack = self._stack = Stack(settings, file, concurrency=2)
            cleanup.push_async_callback(stack.stop)
            await stack.start()
            clients = Load(f"http://{stack.data[0]}")
            cleanup.push_async_callback(clients.close)
            admin = str(stack.app.admin_address)
            watch = Watch(admin, clients)
            cleanup.push_async_callback(watch.close)
            tell(
                self._console,
                f"Envoy on {urls(stack.data)}, the service's status on http://{admin}/status; servers come and go by"
                f" {script}; log and configuration are beside it",
            )
            view: Picture | Plain = (
                Plain(self._console)
                if self._check or not sys.stdout.isatty()
                else Picture(self._console, watch, clients)
            )
            cleanup.callback(view.close)

            def told(happening: Happening) -> None:
                if happening.event in _TOLD:
                    view.say("", happening.text)

            scaler = self._scaler = Scaler(script, admin, told)
            cleanup.push_async_callback(scaler.stop)
            await scaler.start()
            story = Story(scaler, clients, watch, view.say, view.checked)
            await self._run(stop, stack, scaler, watch, story, view)

    async def _run(
        self, stop: asyncio.Event, stack: Stack, scaler: Scaler, watch: Watch, story: Story, view: Picture | Plain
    ) -> None:
        """Play until the end, a signal, or the end of a part."""
        self.interrupted = await play(
            stop,
            self._play(story, view, stack, scaler),
            stack.wait_envoy(),
            frames(view.refresh),
            watch.run(),
            _scales(scaler),
        )

    async def _play(self, story: Story, view: Picture | Plain, stack: Stack, scaler: Scaler) -> None:
        await story.play()
        self.exit_code = 0 if story.failed == 0 else 1
        found = verdict(story.held, story.failed)
        if self._check:
            view.say("", found)
            return
        view.say(f"{found}; now it is yours", "The load goes on. Try these in another terminal; Ctrl-C ends it all.")
        for line in self._to_try(stack):
            self._console.print(line, markup=False, soft_wrap=True)
        await scaler.start()
        story.load.start()
        story.load.towards(BASE_PER_S, 0.0)
        await asyncio.Event().wait()

    def _to_try(self, stack: Stack) -> list[str]:
        admin = f"http://{stack.app.admin_address}"
        chat = f"curl http://{stack.data[0]}/v1/chat/completions -H 'content-type: application/json' -d "
        body = '{"model": "demo-8b", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 200}'
        return [
            "",
            "Send it some work, and see servers come:",
            f"for i in $(seq 40); do {chat}'{body}' >/dev/null 2>&1 & done",
            "What is recommended, by which numbers, and what would be done about it:",
            f"curl {admin}/autoscale/v1/pools/{POOL}",
            f"extproc scale {POOL} --dry-run --once --admin {admin}",
            "Take a server out by hand, and see another one come in its place:",
            f"extproc drain --victim --wait --admin {admin}",
            "",
        ]


async def _scales(scaler: Scaler) -> None:
    """Raises DemoError when `extproc scale` ends by itself."""
    while True:
        await scaler.wait()
        if not scaler.stopping:
            raise DemoError(scaler.failure)
        await asyncio.sleep(_LOOK_S)
