"""`extproc demo`: `extproc up`, four simulated servers, and clients: see it route."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from extproc.cli._demo_stage import frames, play, tell, verdict
from extproc.cli._fail import fail

if TYPE_CHECKING:
    from rich.console import Console

    from extproc.cli._demo_autoscale import AutoscaleDemo
    from extproc.cli._demo_config import Ports
    from extproc.cli._demo_fleet import Fleet
    from extproc.cli._demo_story import Story
    from extproc.cli._demo_traffic import Traffic
    from extproc.cli._demo_view import Picture, Plain
    from extproc.cli._demo_watch import Watch
    from extproc.cli._stack import Stack

_INSTALL = 'The demo needs {what}. Install it with: pip install "vllm-extproc[demo]"'
_SERVERS = 4
_CHECK_SECONDS = 20.0
_SHOW_SECONDS = 75.0  # time to read along


def demo(
    check: Annotated[
        bool, typer.Option("--check", help="Unattended: plain lines, ends by itself, exit status 0 only if all held.")
    ] = False,
    servers: Annotated[int, typer.Option("--servers", min=3, max=8, help="Simulated vLLM servers.")] = _SERVERS,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", min=4, help=f"Length of the script: {_SHOW_SECONDS:g}, with --check {_CHECK_SECONDS:g}."
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="Envoy's data port; default: 8080, or a free one.")
    ] = None,
    autoscale: Annotated[
        bool,
        typer.Option(
            "--autoscale",
            help="Another script, of three minutes: servers start cold and go as the load rises and falls.",
        ),
    ] = False,
) -> None:
    """Show it at work on this machine: real Envoy, the service, simulated vLLM servers and clients.

    Servers get busy, die and come back, and the service itself dies; at the end it says what held, stays up, and tells
    which curl to try. Nothing outside this machine is used, and nothing is left behind.
    """
    if autoscale and seconds is not None:
        raise typer.BadParameter("the script of --autoscale has its own length", param_hint="--seconds")
    if autoscale and servers != _SERVERS:
        raise typer.BadParameter("the fleet of --autoscale has as many as its load asks for", param_hint="--servers")
    _require()
    from rich.console import Console

    from extproc.cli import _logs, _run
    from extproc.cli._demo_config import HOST, choose_ports
    from extproc.cli._ports import taken

    if port is not None and taken(HOST, port):
        fail(f"--port {port}: something else listens there", 1)
    console = Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="extproc-demo-"))
    log_file = folder / "demo.log"
    logging.basicConfig(level=logging.INFO, format=_logs.TEXT, filename=log_file)
    logging.captureWarnings(True)
    if autoscale:
        from extproc.cli._demo_autoscale_config import MAX_REPLICAS

        servers = MAX_REPLICAS + 1  # a new one may come while another one goes
    ports, moved = choose_ports(servers, port)
    if moved:
        tell(console, f"Ports in use here, so others were taken: {', '.join(moved)}.")
    run: _Demo | AutoscaleDemo
    if autoscale:
        from extproc.cli._demo_autoscale import AutoscaleDemo

        run = AutoscaleDemo(console, folder, ports, check=check)
    else:
        run = _Demo(
            console, folder, ports, check=check, seconds=seconds or (_CHECK_SECONDS if check else _SHOW_SECONDS)
        )
    code = 1
    try:
        _run.run_until_signal(run.main, at_once=run.at_once)
        code = run.exit_code
    except Exception as error:
        logging.getLogger(__name__).exception("the demo ended")
        tell(console, f"The demo could not go on: {error}")
    finally:
        if code == 0 or run.interrupted:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            tell(console, f"The log and Envoy's configuration are kept in {folder}")
    raise typer.Exit(130 if run.interrupted else code)  # 130: as a shell tells of Ctrl-C


def _require() -> None:
    """Say how to install what is missing."""
    from extproc.cli._envoy import EnvoyError, find_binary

    missing = ""
    try:
        import openai  # noqa: F401
    except ImportError:
        missing = "the openai package"
    try:
        find_binary()
    except EnvoyError:
        missing = f"{missing} and Envoy" if missing else "Envoy"
    if missing:
        fail(_INSTALL.format(what=missing), 1)


class _Demo:
    """One run: builds the parts, plays the story, stays up if wanted, takes everything down."""

    def __init__(self, console: Console, folder: Path, ports: Ports, *, check: bool, seconds: float) -> None:
        self.exit_code = 1
        self.interrupted = False
        self._console = console
        self._folder = folder
        self._ports = ports
        self._check = check
        self._seconds = seconds
        self._stack: Stack | None = None

    def at_once(self) -> None:
        """For a second Ctrl-C: leave no process and no file behind, wait for nothing."""
        if self._stack is not None:
            self._stack.kill_now()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def main(self, stop: asyncio.Event) -> None:
        from extproc.app import App
        from extproc.cli import _demo_config
        from extproc.cli._demo_fleet import Fleet
        from extproc.cli._demo_story import Story
        from extproc.cli._demo_traffic import Traffic
        from extproc.cli._demo_watch import Watch
        from extproc.cli._stack import Stack, urls
        from extproc.config import load

        file = self._folder / "envoy.yaml"
        _demo_config.write(file, self._ports)
        settings = load(file).settings  # without `check`, which takes a second: a test checks what `write` writes
        assert settings is not None
        watch = Watch()
        fleet = Fleet(self._ports.servers)
        async with contextlib.AsyncExitStack() as cleanup:
            await fleet.start()
            cleanup.push_async_callback(fleet.stop)
            stack = self._stack = Stack(
                settings, file, concurrency=2, make_app=lambda settings: watch.attach(App(settings))
            )
            cleanup.push_async_callback(stack.stop)
            await stack.start()
            traffic = Traffic(f"http://{stack.data[0]}")
            cleanup.push_async_callback(traffic.close)
            tell(
                self._console,
                f"Envoy on {urls(stack.data)}, the service's status on http://{stack.app.admin_address}/status,"
                f" {len(fleet.names)} simulated servers; log and configuration in {self._folder}",
            )
            view = self._view(fleet, watch, traffic)
            cleanup.callback(view.close)
            story = Story(fleet, stack, traffic, watch, self._seconds, view.say, view.checked)
            await self._run(stop, stack, story, view)

    def _view(self, fleet: Fleet, watch: Watch, traffic: Traffic) -> Picture | Plain:
        from extproc.cli._demo_view import Picture, Plain

        if self._check or not sys.stdout.isatty():
            return Plain(self._console)
        return Picture(self._console, fleet, watch, traffic)

    async def _run(self, stop: asyncio.Event, stack: Stack, story: Story, view: Picture | Plain) -> None:
        """Play until the end, a signal, or the end of Envoy."""
        self.interrupted = await play(stop, self._play(story, view, stack), stack.wait_envoy(), frames(view.refresh))

    async def _play(self, story: Story, view: Picture | Plain, stack: Stack) -> None:
        await story.play()
        self.exit_code = 0 if story.failed == 0 else 1
        found = verdict(story.held, story.failed)
        if self._check:
            view.say("", found)
            return
        view.say(f"{found}; now it is yours", "Try these in another terminal, and watch. Ctrl-C ends it all.")
        for line in _curls(stack):
            self._console.print(line, markup=False, soft_wrap=True)
        await asyncio.Event().wait()


def _curls(stack: Stack) -> list[str]:
    from extproc.cli._demo_fleet import MODEL

    chat = f"curl http://{stack.data[0]}/v1/chat/completions -H 'content-type: application/json' -d "
    body = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "hello"}}], "max_tokens": 40'
    admin = f"http://{stack.app.admin_address}"
    return [
        "",
        f"{chat}'{body}}}'",
        f"{chat}'{body}, \"stream\": true}}' -N",
        f"curl {admin}/status",
        f"curl {admin}/metrics",
        "",
    ]
