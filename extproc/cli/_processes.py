"""In how many processes does the service run?"""

from __future__ import annotations

import sys

from extproc.app import App
from extproc.cli._options import LogFormat
from extproc.config.settings import Settings
from extproc.discovery.config_file import Followed
from extproc.workers import crew

# -P: a file in the directory where the service was started must not stand in for a module.
_WORKER = (sys.executable, "-P", "-m", "extproc.cli._worker")


def app_of(settings: Settings, log_level: str, log_format: LogFormat, *, followed: Followed | None = None) -> App:
    """The service as its settings say: in this process, or in workers, of which this one is the supervisor.

    Raises ListenError as `App` does.
    """
    if settings.workers == 1:
        return App(settings, followed=followed)
    start = {"log_level": str(log_level), "log_format": str(log_format)}
    return crew.app_of(settings, followed, _WORKER, start)
