"""What do all sections of the settings have in common?"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Section(BaseModel):
    """An unknown key is an error, not a setting without effect."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def model_names(value: object) -> object:
    """A name, several with commas between, or a list, as a list."""
    return [name for part in value.split(",") if (name := part.strip())] if isinstance(value, str) else value
