"""Adapters of third-party libraries to a device; the only code that patches them. It uses devices through Backend."""
