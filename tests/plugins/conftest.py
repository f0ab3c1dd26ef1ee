from __future__ import annotations

from plugins.fake_site import reference, site

__all__ = ["reference", "site"]
