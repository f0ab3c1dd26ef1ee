from __future__ import annotations

from plugins.fake_site import site
from report.conftest import train_record

__all__ = ["site", "train_record"]
