"""How does one cell run in a process of its own? (`python -m bench.routing.worker FOLDER`, started by `run`)

The folder holds `cell.json`. The worker starts servers and arm, writes `ready`, waits for `go`, and leaves `row.json`
or, with the reason, `failed.txt`. Several workers can so be let go at the same moment.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import time
from pathlib import Path

from bench.common.front import find_envoy
from bench.common.process import ArmFailedError
from bench.routing.cell import measure
from bench.routing.requests import requests
from bench.routing.results import Cell

_GO_WITHIN_S = 120.0  # others of the batch may take long to start


def main(folder: Path) -> int:
    """Run the cell of a folder. 0: its row is there; 1: it failed; 130: it was told to stop."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    cell = Cell(**json.loads((folder / "cell.json").read_text()))
    try:
        row = measure(
            cell, requests(cell.workload, cell.seed, cell.seconds), folder, find_envoy(), lambda: _ready_and_go(folder)
        )
    except (ArmFailedError, ValueError) as error:
        (folder / "failed.txt").write_text(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    _write(folder / "row.json", json.dumps(dataclasses.asdict(row)))
    return 0


def _ready_and_go(folder: Path) -> None:
    (folder / "ready").touch()
    deadline_s = time.monotonic() + _GO_WITHIN_S
    while not (folder / "go").exists():
        if time.monotonic() > deadline_s:
            raise ArmFailedError(f"nobody said go within {_GO_WITHIN_S:g} s")
        time.sleep(0.005)


def _write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def _as_interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
