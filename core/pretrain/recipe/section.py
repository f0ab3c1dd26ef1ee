"""Base of all sections of a recipe: frozen, no unknown keys, exact types; and short text of a value for messages."""

from __future__ import annotations

import re
import reprlib
import sys
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, StrictBool, StrictStr, StringConstraints, model_validator

from pretrain.stores.address import has_scheme, is_address, require_name, url_path

_MOST_BITS = 256


class _Short(reprlib.Repr):
    """Python's short texts, also of what would be written in full there: numbers of any length, ordered dicts."""

    repr_OrderedDict = reprlib.Repr.repr_dict  # noqa: N815  looked up by the type's name

    def repr_int(self, x: int, level: int) -> str:
        """Return the digits, or how many bits there are: Python refuses to write numbers of 4300 digits."""
        bits = x.bit_length()
        return super().repr_int(x, level) if bits <= _MOST_BITS else f"a number of {bits} bits"


_SHORT = _Short()
_SHORT.maxlevel = 2
_SHORT.maxstring = 60


def shown(value: object) -> str:
    """Return the value as Python writes it, cut in the middle if it is long."""
    return _SHORT.repr(value)


def as_text(value: object) -> str:
    """Return a value as a person writes it, True as "true"."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_written(value: object) -> str:
    """Return the value as YAML writes it, with the other words that YAML reads as true or false."""
    match value:
        case True:
            return "true (as YAML reads yes and on)"
        case False:
            return "false (as YAML reads no and off)"
        case _:
            return shown(value)


_INTEGER = re.compile(r"[-+]?\d+(_\d+)*")
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
    """Return a path as it is given, file:///x as /x; raises ValueError for an address such as s3://bucket/x."""
    path = url_path(given) if isinstance(given, str) else given
    if isinstance(path, str) and has_scheme(path):
        msg = f"{shown(given)} is a URL; only local files are read and written. "
        msg += "Mount the store as a folder, or copy the files; addresses may be given as checkpoint.save, "
        msg += "checkpoint.load and token files of data, and as what commands read."
        raise ValueError(msg)
    return path


def stored_path(given: object) -> object:
    """Return a path as `local_path`, or an address s3://bucket/x or gs://bucket/x without a slash at its end."""
    if not isinstance(given, str) or not is_address(given):
        try:
            return local_path(given)
        except ValueError as error:
            msg = str(error).replace("only local files", "only s3://, gs:// and local files")
            raise ValueError(msg) from error
    return url_path(given)


def token_path(given: object) -> object:
    """Return the path or address of a token file without its suffix; raises ValueError for any other."""
    if isinstance(given, str) and _SUFFIX.search(given):
        msg = f"{shown(given)} is one of the token file's two files. Leave the suffix out: {_SUFFIX.sub('', given)}"
        raise ValueError(msg)
    path = stored_path(given)
    return require_name(path) if isinstance(path, str) and is_address(path) else path


Int = Annotated[int, BeforeValidator(_integer)]
Float = Annotated[float, BeforeValidator(_real)]
Bool = StrictBool
Str = StrictStr
LocalPath = Annotated[str, StringConstraints(strict=True, min_length=1), BeforeValidator(local_path)]
StoredPath = Annotated[str, StringConstraints(strict=True, min_length=1), BeforeValidator(stored_path)]
TokenPath = Annotated[str, StringConstraints(strict=True, min_length=1), BeforeValidator(token_path)]


class Section(BaseModel):
    """A part of a recipe. A key that is null counts as not given, so that an override can unset one."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_null(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {key: value for key, value in given.items() if value is not None or key not in cls.model_fields}
