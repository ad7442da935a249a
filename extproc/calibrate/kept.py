"""Which steps are measured already? The file beside the profile, from which an interrupted test goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from extproc import whole_file
from extproc.autoscale.profile import Server, StepRow
from extproc.calibrate.errors import CalibrationError, OtherParametersError


class Kept(BaseModel):
    """All that a test has found so far."""

    model_config = ConfigDict(extra="ignore")

    version: Literal[1] = 1
    parameters: dict[str, Any]
    prompt_shape: str | None = None  # lengths that were taken from a running service: they would be others by now
    output_shape: str | None = None
    shared_ratio: float | None = None  # likewise
    server: Server | None = None
    first_per_s: float | None = None
    idle_ttft_s: float | None = None
    idle_stay_s: float | None = None
    steps: list[StepRow] = []


def path_of(profile: Path) -> Path:
    """Where the steps of a profile are kept."""
    return profile.with_name(profile.name + ".steps")


def load(path: Path) -> Kept | None:
    """None: there is no such file. Raises CalibrationError if it is there and cannot be used."""
    try:
        return Kept.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CalibrationError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError:
        raise OtherParametersError(f"{path} holds no steps of a load test; --anew writes it anew") from None


def save(path: Path, kept: Kept) -> None:
    """As a whole or not at all. Raises CalibrationError."""
    write_whole(path, kept.model_dump_json(indent=1, exclude_none=True) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Raises CalibrationError."""
    try:
        whole_file.replace(path, text.encode())
    except OSError as error:
        raise CalibrationError(f"{path} cannot be written: {error.strerror}") from None


def require_same(path: Path, kept: Kept, parameters: dict[str, Any]) -> None:
    """Raises OtherParametersError, which names what differs."""
    names = [name for name in {**kept.parameters, **parameters} if kept.parameters.get(name) != parameters.get(name)]
    if names:
        differ = "; ".join(f"{name} {kept.parameters.get(name)}, now {parameters.get(name)}" for name in sorted(names))
        raise OtherParametersError(
            f"{path} has {len(kept.steps)} steps that were measured with other parameters ({differ}). --anew measures"
            " all again; another --out leaves these alone"
        )
