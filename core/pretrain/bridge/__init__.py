"""Adapters of third-party libraries to a device; the only code that changes them. It uses devices through Backend."""
