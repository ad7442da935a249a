"""How does the benchmark start, freeze, account for and surely stop the processes it measures?

Only one arm may use the machine while it is measured, but starting a router for every window would take longer than
measuring it. So all arms run from start to end and those not measured are frozen with SIGSTOP: they take no CPU, and
none of their background work (scrapes, health checks) falls into another arm's window.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of the project
EXTPROC = (sys.executable, "-c", "from extproc.cli import main; main()")  # the command line; needs no installed script
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ArmFailedError(Exception):
    """An arm did not start, answered wrongly or died; the message says which and shows the end of its log."""


_PORTS = range(12_000, 20_000)  # below those that the system gives to outgoing connections, and those of the tests


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nothing listened on a moment ago, at random."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for port in random.SystemRandom().sample(_PORTS, 1000):
            if len(ports) == count:
                break
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", port))
                sock.listen()
                ports.append(port)
        return ports


@dataclass(frozen=True, slots=True)
class Process:
    """A started program, leader of its own session (so that a Ctrl-C at the terminal reaches the benchmark only)."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def check_alive(self) -> None:
        """Raises ArmFailedError when the program has exited."""
        code = self.popen.poll()
        if code is not None:
            raise ArmFailedError(f"{self.name} exited with code {code}; the end of its log:\n{self.log_tail()}")

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def cpu_s(self) -> float:
        """CPU time of the program and of all its descendants so far, in seconds; the kernel counts in 10 ms ticks."""
        return sum(parse_stat_cpu_s(text) for text in _tree_stats(self.pid))

    def ask_to_stop(self) -> None:
        """Send SIGTERM, and thaw: a frozen process would keep the signal pending."""
        if self.popen.poll() is None:
            self._signal(signal.SIGTERM)
            self.thaw()

    def stop(self, grace_s: float = 5.0) -> None:
        """Wait until it has ended, as it was asked to; killed when it does not go within `grace_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(grace_s)
        self._signal(signal.SIGKILL)  # what is left of the session: children that outlived their parent
        self.popen.wait()


def start(name: str, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> Process:
    """Start a program with its output in `<folder>/<name>.log`."""
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        popen = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(env) if env is not None else None,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    return Process(name, popen, log)


def with_project_on_path() -> dict[str, str]:
    """This environment, in which programs find the project's packages."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def _die_with_parent() -> None:
    """In the child: die when the benchmark is killed; else frozen processes would stay forever."""
    pr_set_pdeathsig = 1  # prctl(2)
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def parse_stat_cpu_s(text: str) -> float:
    """User and system seconds from a line of /proc/<pid>/stat, with those of children already waited for.

    The command name stands in parentheses and may hold spaces and parentheses itself, so fields are counted from the
    last one: utime, stime, cutime, cstime are fields 14 to 17 of proc(5), the 12th to 15th after the name.
    """
    fields = text.rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / CLOCK_TICKS_PER_S


def _tree_stats(root: int) -> Iterator[str]:
    pending = [root]
    while pending:
        pid = pending.pop()
        try:
            yield Path(f"/proc/{pid}/stat").read_text()
            for task in Path(f"/proc/{pid}/task").iterdir():
                pending.extend(int(child) for child in (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked


def wait_until(what: str, ready: Callable[[], bool], processes: Sequence[Process], timeout_s: float = 60.0) -> None:
    """Poll `ready` until it is true.

    Raises:
        ArmFailedError: one of `processes` exited, or the time is over.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        for process in processes:
            process.check_alive()
        if ready():
            return
        if time.monotonic() > deadline:
            tails = "\n".join(f"--- {process.name}\n{process.log_tail()}" for process in processes)
            raise ArmFailedError(f"{what}: not within {timeout_s:g} s\n{tails}")
        time.sleep(0.05)
