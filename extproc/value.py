"""How are values made of which each request needs several?

A frozen dataclass takes four times as long to make as one that is not: each field is set through a call. So these are
frozen for the type checker, which sees all of this project's code, and plain at run time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """A dataclass with slots, equality and a hash. Do not change one: nothing but the type checker stops you."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
