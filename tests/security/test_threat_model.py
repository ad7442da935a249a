"""Does each row of docs/security.md name a test that there is, and is each of our tests named there?"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
_, _, THREATS = PAGE.partition("\n## Threats\n")
SECTIONS = {
    part.partition("\n")[0]: part.partition("\n")[2] for part in THREATS.partition("\n## ")[0].split("\n### ")[1:]
}
ROWS = [
    (f"{section}: {cells[0]}", cells)
    for section, text in SECTIONS.items()
    for line in text.splitlines()
    if line.startswith("| ") and not line.startswith(("| threat |", "|---"))
    for cells in [[cell.strip() for cell in line.strip("|").split(" | ")]]
]
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@lru_cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds) and node.name.startswith("test_"))


def test_all_kinds_of_threats_are_there() -> None:
    assert list(SECTIONS) == [
        "A client chooses its server, or another's",
        "The service is made to connect somewhere (SSRF)",
        "Pages of servers",
        "The admin port",
        "The gRPC port",
        "Slow peers",
        "Memory and time",
        "Logs and pages",
        "KV events",
        "Supply chain",
    ]
    assert len(ROWS) >= 45


@pytest.mark.parametrize("cells", [cells for _, cells in ROWS], ids=[name for name, _ in ROWS])
def test_each_threat_has_an_answer_and_a_test_that_there_is(cells: list[str]) -> None:
    assert len(cells) == 3
    threat, answer, named = cells
    assert threat
    assert answer
    found = _TEST.findall(named)
    assert found
    assert not _TEST.sub("", named).replace(",", "").strip(), "nothing but tests stands there"
    for file, name in found:
        assert name in names_in(file), f"{file} has no {name}"


def test_each_of_our_files_is_of_some_threat() -> None:
    named = {file for file, _ in _TEST.findall(THREATS)}
    here = {f"tests/security/{path.name}" for path in Path(__file__).parent.glob("test_*.py")}
    # Of what stands in the other parts of the page.
    assert here - named == {"tests/security/test_port_files.py"}


BOUNDS = {
    "extproc/rpc/session.py": (
        "MOST_STREAMS = 100_000",
        "MOST_CONNECTIONS = 10_000",
        "MOST_HELD_BYTES = 1 << 30",
        "BEGIN_S = 10.0",
    ),
    "extproc/rpc/http2.py": ("MAX_STREAMS = 100_000", "MOST_IDLE_FRAMES = 10_000", "MOST_SETTINGS = 100", "64 * 1024"),
    "extproc/admin/port.py": ("MOST_CONNECTIONS = 512", "IDLE_S = 20.0", "REQUEST_S = 60.0"),
    "extproc/affinity/stored.py": ("MAX_IDS = 65_536",),
    "extproc/openai/body.py": ("MAX_JSON_BYTES = 2 * 1024 * 1024",),
    "extproc/telemetry/models.py": ("MAX_BYTES = 2 * 1024 * 1024",),
}


@pytest.mark.parametrize("file", BOUNDS)
def test_the_bounds_of_the_page_are_those_of_the_code(file: str) -> None:
    """When one of these changes, the table of bounds does."""
    text = (ROOT / file).read_text()
    for bound in BOUNDS[file]:
        assert bound in text


def test_nothing_subscribes_to_events_of_engines() -> None:
    """KV events are not received: no library for it is there, and nothing listens but the two ports."""
    sources = {path: path.read_text() for path in (ROOT / "extproc").rglob("*.py") if "sim" not in path.parts}
    assert "zmq" not in (ROOT / "pyproject.toml").read_text()
    assert not [path for path, text in sources.items() if re.search(r"\bzmq\b|\bnats\b|kafka", text)]
    listening = {
        str(path.relative_to(ROOT))
        for path, text in sources.items()
        if re.search(r"\bcreate_server\(|\bstart_server\(|\.listen\(|TCPSite\(|UnixSite\(|start_unix_server\(", text)
    }
    # The last one asks whether a port is free, and closes it.
    ours = {"extproc/rpc/server.py", "extproc/admin/port.py", "extproc/sockets.py", "extproc/cli/_ports.py"}
    assert listening <= ours
