from __future__ import annotations

from plugins.fake_site import site

__all__ = ["site"]
