"""How does a command get its settings, and what does it say when they are wrong?"""
from __future__ import annotations

from pathlib import Path

from extproc.config.settings import Settings


def settings_from(envoy: Path | None, config: Path | None, *, listen: str | None, admin: str | None) -> Settings:
    raise SystemExit("not yet")
