"""Base of all sections of a recipe: frozen, no unknown keys, exact types."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, StrictBool, StrictStr, StringConstraints, model_validator

from pretrain.recipe.shown import as_written, shown

_INTEGER = re.compile(r"[-+]?\d+(_\d+)*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SUFFIX = re.compile(r"\.(bin|idx)$")


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
        msg = f"{as_written(given)} is not a whole number."
        raise ValueError(msg)  # noqa: TRY004  pydantic collects only ValueError
    return number


def _real(given: object) -> object:
    number = as_number(given)
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
        msg = f"{as_written(given)} is not a number."
        raise ValueError(msg)
    return float(number)


def local_path(given: object) -> object:
    """Return a path as it is given; raises ValueError for an address such as s3://bucket/x."""
    if isinstance(given, str) and _SCHEME.match(given):
        msg = f"{shown(given)} is an address; only files of this machine are read and written. "
        msg += "Mount the store as a folder and give a path in it, or copy what is needed."
        raise ValueError(msg)
    return given


def token_path(given: object) -> object:
    """Return the path of a token file without its suffix, as it is given; raises ValueError for any other."""
    if isinstance(given, str) and _SUFFIX.search(given):
        msg = f"{shown(given)} is one of the token file's two files. Leave the suffix out: {_SUFFIX.sub('', given)}"
        raise ValueError(msg)
    return local_path(given)


Int = Annotated[int, BeforeValidator(_integer)]
Float = Annotated[float, BeforeValidator(_real)]
Bool = StrictBool
Str = StrictStr
LocalPath = Annotated[str, StringConstraints(strict=True, min_length=1), BeforeValidator(local_path)]
TokenPath = Annotated[str, StringConstraints(strict=True, min_length=1), BeforeValidator(token_path)]


class Section(BaseModel):
    """A part of a recipe. A key that is null counts as not given, so that an override can unset one."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_null(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {key: value for key, value in given.items() if value is not None or key not in cls.model_fields}
