"""What is this machine, and how busy has it been?"""

from __future__ import annotations

import platform
from pathlib import Path

from bench.common.process import CLOCK_TICKS_PER_S


def cores() -> int:
    return len([line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("processor")])


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def parse_machine_cpu(stat: str) -> tuple[float, int]:
    """CPU seconds of all processes on all cores since boot, and the number of cores, from /proc/stat.

    User, nice, system and steal, of proc(5)'s columns. Interrupts are left out: the kernel charges them to no process,
    and on loopback they are the benchmark's own packets.
    """
    lines = [line.split() for line in stat.splitlines() if line.startswith("cpu")]
    user, nice, system, _idle, _iowait, _irq, _softirq, steal = (int(ticks) for ticks in lines[0][1:9])
    busy = user + nice + system + steal
    return busy / CLOCK_TICKS_PER_S, len(lines) - 1
