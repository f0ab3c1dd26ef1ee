"""Addresses in object stores, such as s3://bucket/run, and what of a URL is a path of this machine."""

from __future__ import annotations

import re

STORES = {"s3": "s3fs", "gs": "gcsfs"}
"""Schemes of object stores, and fsspec's library for each; `pretrain[s3]` and `pretrain[gs]` install them."""
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.IGNORECASE | re.DOTALL)


def is_address(given: object) -> bool:
    """Say whether a value is an address in an object store; raises ValueError for one without a bucket."""
    return isinstance(given, str) and url_path(given).startswith(tuple(f"{scheme}://" for scheme in STORES))


def url_path(given: str) -> str:
    """Return file:///x as /x, an address without its last slashes, and anything else as it is.

    ValueError: a file on another machine, or an address without a bucket.
    """
    found = _URL.fullmatch(given)
    if found is None:
        return given
    scheme, rest = found.group(1).lower(), found.group(2)
    if scheme == "file":
        if not rest.startswith("/"):
            msg = f"{given!r:.80} names a file of another machine. Write file:///PATH, with three slashes, or the path."
            raise ValueError(msg)
        return rest
    if scheme not in STORES:
        return given
    parts = rest.rstrip("/").split("/")
    if any(part in {"", ".", ".."} for part in parts):
        raise _no_address(given, scheme)
    return f"{scheme}://{'/'.join(parts)}"


def require_name(address: str) -> str:
    """Return an address; raises ValueError for that of a bucket alone."""
    scheme, _, rest = address.partition("://")
    if "/" not in rest:
        raise _no_address(address, scheme)
    return address


def _no_address(given: str, scheme: str) -> ValueError:
    return ValueError(f"{given!r:.80} is no address of a bucket and a name. Write {scheme}://BUCKET/NAME.")


def has_scheme(given: str) -> bool:
    """Say whether a value is a URL of any kind."""
    return _URL.fullmatch(given) is not None
