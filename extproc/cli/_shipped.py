"""What do the configuration files say that come with the project?

In a wheel they lie inside the package, in a checkout in the folder `envoy`.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def shipped(name: str = "envoy.yaml") -> str:
    """The text of one of them."""
    return _path(name).read_text(encoding="utf-8")


def shipped_folder(name: str) -> dict[str, str]:
    """The texts of all files of a folder and the folders in it, by their paths there."""
    folder = _path(name)
    return {
        file.relative_to(folder).as_posix(): file.read_text(encoding="utf-8")
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def _path(name: str) -> Path:
    package = Path(str(files("extproc")))
    inside = package / "shipped" / name
    return inside if inside.exists() else package.parent / "envoy" / name
