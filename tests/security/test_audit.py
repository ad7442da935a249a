"""`make audit`: what fails, what does not, and what is said. pip-audit is real; the advisory database is not."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

ROOT = Path(__file__).parents[2]
PACKAGES = "orjson==3.10.0\naiohttp==3.9.0\n"
BAD = {
    "id": "GHSA-aaaa-bbbb-cccc",
    "aliases": ["CVE-2024-0001"],
    "summary": "reads what it should not",
    "affected": [
        {
            "package": {"name": "aiohttp", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "3.9.2"}]}],
        }
    ],
}


@asynccontextmanager
async def database(bad: dict[str, Any] | None, *, status: int = 200) -> AsyncIterator[str]:
    """An OSV that knows of one vulnerability of aiohttp, or of none; its URL."""

    async def query(request: web.Request) -> web.Response:
        asked = json.loads(await request.read())
        found = [bad] if bad is not None and asked["package"]["name"] == "aiohttp" else []
        return web.json_response({"vulns": found} if found else {}, status=status)

    app = web.Application()
    app.router.add_post("/v1/query", query)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/query"
    finally:
        await runner.cleanup()


async def audit(folder: Path, url: str, ignored: str = "", *more: str) -> tuple[int | None, str]:
    """Exit status and output."""
    (folder / "packages.txt").write_text(PACKAGES)
    (folder / "ignored.txt").write_text(ignored)
    command = [str(ROOT / ".ci" / "audit.py"), "--database", "osv", "--osv-url", url]
    command += ["--requirement", str(folder / "packages.txt"), "--ignore", str(folder / "ignored.txt"), *more]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    said = (await process.stdout.read()).decode()
    return await process.wait(), said


async def test_a_known_vulnerability_fails_and_says_what_to_do(tmp_path: Path) -> None:
    async with database(BAD) as url:
        status, said = await audit(tmp_path, url)
    assert status == 1
    (line,) = [line for line in said.splitlines() if line.startswith("audit: aiohttp 3.9.0: ")]
    assert "GHSA-aaaa-bbbb-cccc" in line
    assert "CVE-2024-0001" in line
    assert line.endswith("; fixed in 3.9.2")
    assert "audit: 2 packages, 1 vulnerabilities (osv)" in said
    assert ".ci/audit-ignore.txt" in said


async def test_one_that_is_ignored_with_a_reason_does_not(tmp_path: Path) -> None:
    """By whichever of its names."""
    ignored = "# why\nGHSA-aaaa-bbbb-cccc we do not use that part\nCVE-1999-1 was once there\n"
    async with database(BAD) as url:
        status, said = await audit(tmp_path, url, ignored)
    assert status == 0
    assert "is ignored: we do not use that part" in said
    assert "CVE-1999-1 stands in audit-ignore.txt and is not found any more; remove it" in said


async def test_without_any_it_succeeds_and_says_how_much_was_looked_at(tmp_path: Path) -> None:
    async with database(None) as url:
        assert await audit(tmp_path, url) == (0, "audit: 2 packages, 0 vulnerabilities (osv)\n")


async def test_an_entry_without_a_reason_fails(tmp_path: Path) -> None:
    status, said = await audit(tmp_path, "http://127.0.0.1:1", "CVE-2024-0001\n")
    assert (status, "ignored.txt:1: CVE-2024-0001 has no reason" in said) == (1, True)


@pytest.mark.parametrize("kind", ["nobody there", "an error", "no time"])
async def test_a_database_that_cannot_be_asked_is_no_failure_and_no_clean_bill(tmp_path: Path, kind: str) -> None:
    async with database(BAD, status=500 if kind == "an error" else 200) as url:
        more = ("--seconds", "0") if kind == "no time" else ()
        target = "http://127.0.0.1:1/v1/query" if kind == "nobody there" else url
        status, said = await audit(tmp_path, target, "", *more)
    assert status == 0
    assert said.startswith("audit: no advisory database could be asked, so nothing is known (osv: ")
    assert "0 vulnerabilities" not in said


def test_it_is_run_in_ci_with_a_limit_and_nothing_is_ignored_without_a_reason() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    assert "make audit" in run
    assert "timeout 300 make audit" in run
    makefile = (ROOT / "Makefile").read_text()
    assert "\naudit:" in makefile
    assert "\t$(BIN)/python .ci/audit.py\n" in makefile
