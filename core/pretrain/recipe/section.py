"""Base of all sections of a recipe: frozen, no unknown keys, exact types."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, StrictBool, StrictStr, model_validator

from pretrain.recipe.shown import shown

_INTEGER = re.compile(r"[-+]?\d+(_\d+)*")


def as_number(given: object) -> object:
    """Convert numbers that YAML 1.1 reads as text: 1e-4, 2.0e8."""
    if not isinstance(given, str):
        return given
    try:
        return int(given) if _INTEGER.fullmatch(given) else float(given)
    except ValueError:
        return given


def _integer(given: object) -> object:
    number = as_number(given)
    if isinstance(number, float) and number.is_integer():
        return int(number)
    if isinstance(number, bool) or not isinstance(number, int):
        msg = f"{shown(given)} is not a whole number."
        raise ValueError(msg)  # noqa: TRY004  pydantic collects only ValueError
    return number


def _real(given: object) -> object:
    number = as_number(given)
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
        msg = f"{shown(given)} is not a number."
        raise ValueError(msg)
    return float(number)


Int = Annotated[int, BeforeValidator(_integer)]
Float = Annotated[float, BeforeValidator(_real)]
Bool = StrictBool
Str = StrictStr


class Section(BaseModel):
    """A part of a recipe. A key that is null counts as not given, so that an override can unset one."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_null(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {key: value for key, value in given.items() if value is not None or key not in cls.model_fields}
