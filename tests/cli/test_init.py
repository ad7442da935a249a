"""`extproc init`: what it asks, says, writes and refuses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import typer
import yaml
from aiohttp import web
from typer.testing import CliRunner, Result

from extproc.cli.main import app
from extproc.config.check import check
from extproc.config.load import load
from extproc.sim.api import ServerOptions
from extproc.sim.server import SimServer
from extproc.sim.spec import A100_8B
from tests.cli.command import ENTRY
from tests.support.envoy_config import free_port
from tests.support.envoy_wheels import ROOT


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`extproc init ...` in a folder of its own, without a terminal."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["init", *arguments], env={"COLUMNS": "500", "NO_COLOR": "1"})


@pytest.fixture
async def servers() -> AsyncIterator[list[SimServer]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(SimServer(name, A100_8B, options=ServerOptions(models=(name,))))
            for name in ("one", "two")
        ]


async def init(*arguments: str) -> str:
    """`extproc init ...` beside the servers of this process; what it said."""
    result = await asyncio.to_thread(CliRunner().invoke, app, ["init", *arguments], env={"COLUMNS": "500"})
    assert result.exit_code == 0, result.output
    return result.output


def of(*servers: SimServer) -> list[str]:
    return [f"--server=127.0.0.1:{each.port}" for each in servers]


def test_it_writes_a_file_on_which_the_check_passes_and_says_what_comes_next(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    result = run("--no-probe", "-s", "10.0.0.1:8000", "-s", "10.0.0.2:8000", "--listen", str(free_port()))
    assert result.exit_code == 0, result.output
    assert check(tmp_path / "envoy.yaml") == ()
    assert "wrote envoy.yaml" in result.stdout
    assert "extproc up envoy.yaml" in result.stdout
    assert run("--help").exit_code == 0


async def test_it_tells_what_each_server_says(servers: list[SimServer], tmp_path: Path) -> None:
    nobody = free_port()
    listed = [*of(*servers), f"--server=localhost:{nobody}"]
    output = await init(*listed, "--out", str(tmp_path / "e.yaml"), "--model", "one")
    lines = output.splitlines()
    one, two = (next(line for line in lines if f":{each.port} " in line) for each in servers)
    assert "one; 0 running, 0 waiting, KV cache 0%" in one
    assert "two; 0 running" in two
    assert f"! localhost:{nobody}" in output
    assert "no answer: nothing listens there" in output
    assert "serve different models" in output
    assert f"127.0.0.1:{servers[1].port} does not serve one, by its own word" in output
    assert check(tmp_path / "e.yaml") == ()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, "", "models unknown: /v1/models wants an API key (status 401): give --api-key-file"),
        (404, "", "models unknown: /v1/models answers 404"),
        (200, "<html>", "models unknown: /v1/models is not vLLM's; load unknown: /metrics is not vLLM's"),
    ],
)
async def test_it_tells_what_a_server_does_not_say(status: int, body: str, said: str, tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status if request.path == "/v1/models" else 200, text=body)

    async with other_server(answer) as port:
        assert said in await init(f"--server=127.0.0.1:{port}", "--out", str(tmp_path / "e.yaml"))


async def test_it_asks_with_the_servers_key_and_extproc_will_too(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer sesame":
            return web.Response(status=401)
        return web.json_response({"data": [{"id": "secret-model"}]})

    (tmp_path / "key").write_text("sesame\n")
    out = tmp_path / "e.yaml"
    async with other_server(answer) as port:
        output = await init(f"--server=127.0.0.1:{port}", "--out", str(out), "--api-key-file", str(tmp_path / "key"))
    assert "secret-model" in output
    assert "sesame" not in output + out.read_text()
    pool = load(out).settings.pools["vllm"]  # type: ignore[union-attr]
    assert pool.models is not None
    assert pool.models.bearer_token_file == str(tmp_path / "key")


@contextlib.asynccontextmanager
async def other_server(answer: Callable[..., object]) -> AsyncIterator[int]:
    """Something that speaks HTTP; its port."""
    application = web.Application()
    application.router.add_get("/{path:.*}", answer)  # type: ignore[arg-type]
    runner = web.AppRunner(application)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield port
    finally:
        await runner.cleanup()


def test_it_never_overwrites_unless_forced(run: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "envoy.yaml"
    file.write_text("mine")
    result = run("--no-probe", "--server", "10.0.0.1:8000")
    assert result.exit_code == 1
    assert result.stderr == (
        "extproc: envoy.yaml is there already and stays as it is; --force overwrites it, --out names another\n"
    )
    assert file.read_text() == "mine"
    assert run("--no-probe", "--server", "10.0.0.1:8000", "--force").exit_code == 0
    assert check(file) == ()
    assert [each.name for each in tmp_path.iterdir()] == ["envoy.yaml"]


def test_a_file_of_servers_is_written_and_followed(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("--no-probe", "-s", "10.0.0.1:8000 vllm.example:8000", "--servers-file", "fleet.yaml")
    assert result.exit_code == 0, result.output
    assert yaml.safe_load((tmp_path / "fleet.yaml").read_text())["endpoints"] == ["10.0.0.1:8000", "vllm.example:8000"]
    assert str(tmp_path / "fleet.yaml") in (tmp_path / "envoy.yaml").read_text()
    assert check(tmp_path / "envoy.yaml") == ()
    (tmp_path / "envoy.yaml").unlink()
    again = run("--no-probe", "-s", "10.0.0.1:8000", "--servers-file", "fleet.yaml")
    assert again.exit_code == 1
    assert "fleet.yaml is there already" in again.stderr
    assert not (tmp_path / "envoy.yaml").exists()


def test_it_can_be_printed_and_nothing_else_then_is(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("--no-probe", "--server", "10.0.0.1:8000", "--out", "-")
    assert result.exit_code == 0
    assert check(result.stdout, "printed") == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            [],
            "give your vLLM servers, as --server 10.0.0.1:8000 --server 10.0.0.2:8000 (there is no terminal to ask at)",
        ),
        (["--server", "10.0.0.1"], '--server: "10.0.0.1" has no port; write host:port'),
        (["--server", "fd00::1:80"], "put an IPv6 address in brackets, as in [fd00::10]:8000"),
        (["--server", "a:1", "--server", "a:1"], "--server: a:1 is given twice; leave one out"),
        (["--server", "a:1", "--profile", "sesion"], '--profile: unknown "sesion"; did you mean "session"?'),
        (["--server", "a:1", "--listen", "nowhere"], "--listen: "),
        (["--server", "a:1", "--listen", "70", "--envoy-admin", "70"], "0.0.0.0:70 is the port of --envoy-admin too"),
        (["--server", "a:1", "--shape", "round"], "'round' is not one of 'body-first'"),
        (["--server", "a:1", "--out", "."], "is a folder; name a file in it"),
        (["--server", "a:1", "--out", "no/e.yaml"], "there is no folder no; make it first"),
        (["--server", "a:1", "--servers-file", "envoy.yaml"], "is the file of --out too"),
        (["--server", "a:1", "--api-key-file", "key"], "there is no file key"),
        (["--server", "a:1 b:1", "--autoscale", "1"], "--autoscale: 1 is less than the 2 servers given"),
    ],
)
def test_what_is_mistyped_is_told_and_nothing_written(
    run: Callable[..., Result], tmp_path: Path, arguments: list[str], said: str
) -> None:
    result = run("--no-probe", *arguments)
    assert result.exit_code == 2, result.output
    shown = " ".join(result.stderr.replace("│", " ").split()).replace("Invalid value for ", "")
    assert said in shown
    assert list(tmp_path.iterdir()) == []


def test_the_quick_start_names_only_commands_and_options_that_there_are() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options = {name: {opt for each in command.params for opt in each.opts} for name, command in commands.items()}
    for page in ("docs/quick-start.md", "README.md", "docs/upgrade.md", "docs/troubleshooting.md"):
        text = (ROOT / page).read_text()
        named = re.findall(r"extproc ([a-z][a-z-]+)((?: +[^\n`|]*)?)", text)
        for command, rest in named:
            if command in options:
                given = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest.partition("#")[0]))
                assert given <= options[command], f"{page}: extproc {command}{rest}"
        assert len([command for command, _ in named if command in options]) >= 3
    table = (ROOT / "docs/quick-start.md").read_text().partition("## Options of")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(--[a-z-]+)", table)) - {"--api-key"} <= options["init"]


def test_who_has_no_file_yet_is_told_of_it(tmp_path: Path) -> None:
    for command in (["up"], ["serve", "--envoy"]):
        result = CliRunner().invoke(app, [*command, str(tmp_path / "envoy.yaml")])
        assert result.exit_code == 2
        assert "extproc: `extproc init` writes an envoy.yaml to start from" in result.stderr


def test_a_port_that_is_in_use_is_told(run: Callable[..., Result], tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("--no-probe", "--server", "10.0.0.1:8000", "--admin", f"127.0.0.1:{port}")
    assert result.exit_code == 0
    # Something else on this machine may have one of the other ports, which are the usual ones.
    (told,) = (line for line in result.stdout.splitlines() if "something listens already on " in line)
    assert f"127.0.0.1:{port} (--admin);" in told
    assert f"extproc top --admin http://127.0.0.1:{port}" in result.stdout


async def test_on_a_terminal_it_asks_until_it_can_read_the_answer(servers: list[SimServer], tmp_path: Path) -> None:
    terminal = await Terminal.start("init", "--out", str(tmp_path / "e.yaml"))
    await terminal.says("servers [127.0.0.1:8000]:")
    terminal.types("10.0.0.1\n")
    await terminal.says('"10.0.0.1" has no port; write host:port')
    terminal.types(f"127.0.0.1:{servers[0].port} 127.0.0.1:{servers[1].port}\n")
    await terminal.says("one; 0 running")
    await terminal.says("Where clients reach Envoy [0.0.0.0:8080]:")
    port = free_port()
    terminal.types(f"{port}\n")
    assert await terminal.ended() == 0, terminal.output
    assert check(tmp_path / "e.yaml") == ()
    assert f"port_value: {port}" in (tmp_path / "e.yaml").read_text()


async def test_interrupted_it_writes_nothing(tmp_path: Path) -> None:
    terminal = await Terminal.start("init", "--out", str(tmp_path / "e.yaml"))
    await terminal.says("servers [127.0.0.1:8000]:")
    terminal.types("\x03")
    assert await terminal.ended() == 1
    assert not (tmp_path / "e.yaml").exists()


class Terminal:
    """`extproc ...` at a pseudo-terminal."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.output = ""
        self._process = process
        self._master = master
        self._grown = asyncio.Event()
        asyncio.get_running_loop().add_reader(master, self._read)

    @classmethod
    async def start(cls, *arguments: str) -> Terminal:
        master, slave = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ENTRY, *arguments),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "200"},
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # it becomes the one that ^C goes through
        )
        os.close(slave)
        return cls(process, master)

    def types(self, text: str) -> None:
        os.write(self._master, text.encode())

    async def says(self, text: str) -> None:
        async with asyncio.timeout(30):
            while text not in self.output:
                self._grown.clear()
                await self._grown.wait()

    async def ended(self) -> int:
        async with asyncio.timeout(30):
            code = await self._process.wait()
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        return code

    def _read(self) -> None:
        try:
            self.output += os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # its other end is closed
            asyncio.get_running_loop().remove_reader(self._master)
        self._grown.set()
