"""Kernel negotiation: ask every plugin, choose one kernel per operation, build it, compare the choice across ranks."""
