"""How do the processes of the service stand, as JSON beside the rest of the status?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def with_workers(status: Mapping[str, Any], workers: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """The status with its `workers`; None: the service is one process, and that says null. A worker that is not started
    any more is warned of before all else."""
    given_up = [each for each in workers or () if each["state"] == "given up"]
    words = [
        f"worker {each['number']} ended soon after its start, {each['restarts']} times, and is not started any more:"
        " why stands in the log; restart the service"
        for each in given_up
    ]
    return {
        **status,
        "warnings": words + status["warnings"],
        "warned": [{"level": "critical", "text": text} for text in words] + status["warned"],
        "workers": None if workers is None else list(workers),
    }
