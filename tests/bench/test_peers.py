"""Other routers are started in one pinned version, with one documented command line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.common import peers


def test_the_command_line_names_policy_port_and_every_server() -> None:
    command = peers.command_line(Path("/srv"), peers.PEERS["smg"], "cache_aware", 7, 8, [1, 2])

    assert command[:2] == ["/srv/.venv-peers/smg/bin/smg", "launch"]
    text = " ".join(command)
    assert "--port 7" in text
    assert "--policy cache_aware" in text
    assert "--worker-urls http://127.0.0.1:1 http://127.0.0.1:2 --prometheus-host" in text
    assert text.endswith("--log-level warn --disable-tokenizer-autoload")


def test_another_version_does_not_count_as_installed(tmp_path: Path) -> None:
    peer = peers.PEERS["vllm-router"]
    packages = peers.environment_folder(tmp_path, peer) / "lib" / "python3.11" / "site-packages"
    (packages / "vllm_router-0.0.1.dist-info").mkdir(parents=True)
    assert not peers.is_installed(tmp_path, peer)

    (packages / f"vllm_router-{peer.version}.dist-info").mkdir()
    assert peers.is_installed(tmp_path, peer)


def test_a_failed_install_says_how_to_go_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "no network")

    monkeypatch.setattr(subprocess, "run", fail)

    with pytest.raises(RuntimeError, match=r"cannot install smg==[\d.]+: no network\n.*--arms"):
        peers.ensure_installed(tmp_path, peers.PEERS["smg"], lambda text: None)
