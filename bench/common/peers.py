"""Which other routers are compared, in which version, and how is each started?

All are Rust programs in Python wheels. Each gets a virtual environment of its own, is started with the servers'
URLs and a policy, and otherwise runs with its defaults, except: the log level is "warn" (at the default two of them
write two lines a request, which slows them), and smg is told not to fetch a tokenizer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.common.http import fetch


@dataclass(frozen=True, slots=True)
class Peer:
    """A router in a wheel: its distribution, version, and command line up to the options all peers share."""

    distribution: str
    version: str
    command: tuple[str, ...]  # program in the environment's bin folder, and its sub-command
    log_level: str
    extra: tuple[str, ...] = ()


PEERS = {
    "vllm-router": Peer("vllm-router", "0.1.17", ("vllm-router",), "warning"),
    "sglang-router": Peer("sglang-router", "0.3.2", ("sglang-router", "launch"), "warn"),
    "smg": Peer("smg", "1.13.0", ("smg", "launch"), "warn", ("--disable-tokenizer-autoload",)),
}


def environment_folder(root: Path, peer: Peer) -> Path:
    return root / ".venv-peers" / peer.distribution


def is_installed(root: Path, peer: Peer) -> bool:
    """Whether the pinned version is in its environment already."""
    name = f"{peer.distribution.replace('-', '_')}-{peer.version}.dist-info"
    return any(environment_folder(root, peer).glob(f"lib/python*/site-packages/{name}"))


def ensure_installed(root: Path, peer: Peer, say: Callable[[str], object]) -> None:
    """Make the environment and install the pinned wheel, unless both are there.

    Raises:
        RuntimeError: pip failed; with its last words and the way to leave the peer out.
    """
    if is_installed(root, peer):
        return
    folder = environment_folder(root, peer)
    say(f"installing {peer.distribution} {peer.version} into {folder.relative_to(root)}")
    wanted = f"{peer.distribution}=={peer.version}"
    steps = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(
                f"cannot install {wanted}: {done.stderr.strip()[-500:]}\nto go without it, name the others in --arms"
            )


def command_line(
    root: Path, peer: Peer, policy: str, port: int, metrics_port: int, servers: Sequence[int]
) -> list[str]:
    """The whole command that starts a peer on 127.0.0.1:`port`."""
    program, *rest = peer.command
    return [
        str(environment_folder(root, peer) / "bin" / program),
        *rest,
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--policy", policy),
        *("--worker-urls", *(f"http://127.0.0.1:{server}" for server in servers)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
        *("--log-level", peer.log_level),
        *peer.extra,
    ]


def healthy_workers(port: int) -> int:
    """Workers that a peer has registered and found healthy; all peers tell on the same path."""
    status, text = fetch(f"http://127.0.0.1:{port}/workers")
    if status != 200:
        return 0
    return sum(1 for worker in json.loads(text).get("workers", []) if worker.get("is_healthy"))
