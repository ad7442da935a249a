"""Does the package that is published work in an environment that has nothing else?"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.cli._envoy import find_binary
from tests.support.envoy_config import free_port
from tests.support.envoy_wheels import ROOT
from tests.support.waiting import eventually

pytestmark = [pytest.mark.envoy, pytest.mark.slow]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--directory", str(folder), cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment with the wheel and what it says it needs, and nothing else."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    (wheel,) = built.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check")
    run(*pip, "install", "--quiet", str(wheel), cwd=folder)
    return folder / "bin"


def run(*command: str, cwd: Path) -> str:
    """Its output; a failure is told with all it said."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=clean)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_a_wheel_made_of_the_sdist_has_the_same_files(built: Path, tmp_path: Path) -> None:
    """So whoever builds from it gets the same."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "--directory", str(tmp_path), cwd=source)
    names = [set(zipfile.ZipFile(next(folder.glob("*.whl"))).namelist()) for folder in (built, tmp_path)]
    assert names[0] == names[1]
    shipped = {name.rpartition("/")[2] for name in names[0] if name.startswith("extproc/shipped/envoy")}
    assert {"envoy.yaml", "envoy-eds.yaml", "envoy-headers-then-body.yaml", "envoy-full-duplex.yaml"} <= shipped
    assert not [name for name in names[0] if name.startswith(("tests/", "docs/", "bench/"))]


async def test_from_an_empty_environment_to_an_answer_through_envoy(environment: Path, tmp_path: Path) -> None:
    """`pip install`, two servers on odd ports, `extproc init`, `serve`, Envoy, a request; all from the wheel."""
    where = run(str(environment / "python"), "-c", "import extproc; print(extproc.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment.parent)
    extproc = str(environment / "extproc")
    data, admin, grpc, envoy_admin, first = (free_port() for _ in range(5))
    second = free_port()
    ports = [
        f"--listen=127.0.0.1:{data}",
        f"--admin={admin}",
        f"--grpc={grpc}",
        f"--envoy-admin=127.0.0.1:{envoy_admin}",
    ]
    async with contextlib.AsyncExitStack() as stack:
        for port in (first, second):
            await stack.enter_async_context(running(extproc, "vllm-sim", "--port", str(port), "--model", "m"))
        async with aiohttp.ClientSession() as client:

            async def answers(url: str) -> Any:
                with contextlib.suppress(aiohttp.ClientError):
                    async with client.get(url) as response:
                        return response.status == 200 and (await response.read() or b"an empty page")

            for port in (first, second):
                await eventually(lambda port=port: answers(f"http://127.0.0.1:{port}/health"), "it runs", timeout_s=60)
            servers = [f"--server=127.0.0.1:{port}" for port in (first, second)]
            said = run(extproc, "init", *servers, *ports, cwd=tmp_path)
            assert said.count("m; 0 running") == 2, said
            assert "0 errors, 0 warnings" in run(extproc, "check", "envoy.yaml", cwd=tmp_path)
            file = str(tmp_path / "envoy.yaml")
            await stack.enter_async_context(running(extproc, "serve", "--envoy", file))
            await eventually(lambda: answers(f"http://127.0.0.1:{admin}/readyz"), "it is ready", timeout_s=60)
            await stack.enter_async_context(running(str(find_binary()), "-c", file, "--use-dynamic-base-id"))
            await eventually(lambda: answers(f"http://127.0.0.1:{envoy_admin}/ready"), "Envoy is ready", timeout_s=60)
            body = {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}]}

            async def picked() -> Any:
                async with client.post(f"http://127.0.0.1:{data}/v1/chat/completions", json=body) as response:
                    assert response.status == 200, await response.text()
                return json.loads(await answers(f"http://127.0.0.1:{admin}/status"))["requests"]["picks"].get("vllm")

            await eventually(picked, "a request is picked", timeout_s=60)


@contextlib.asynccontextmanager
async def running(*command: str) -> AsyncIterator[None]:
    """A process for as long as that; its output is shown when the test fails."""
    process = await asyncio.create_subprocess_exec(*command)
    try:
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            try:
                await asyncio.wait_for(process.wait(), 20)
            except TimeoutError:
                process.kill()
                await process.wait()
