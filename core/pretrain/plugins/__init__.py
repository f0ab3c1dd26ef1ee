"""Plugin interface between the core and the hardware: hooks, requests and answers.

A plugin is a module (or object) whose functions carry the `hookimpl` mark. Two entry-point groups find it:
`pretrain.backends` (the entry's name is the value of `--backend`; one device each) and `pretrain.plugins`
(kernels for a device that somebody else's backend drives). docs/writing-a-backend.md is the one-page guide.
"""

from __future__ import annotations

import pluggy

PROJECT = "pretrain"
BACKENDS = "pretrain.backends"
PLUGINS = "pretrain.plugins"

CONTRACT = (1, 4)
"""Version (major, minor) of hooks, requests and `Backend`; rules: `contract` and docs/writing-a-backend.md."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
