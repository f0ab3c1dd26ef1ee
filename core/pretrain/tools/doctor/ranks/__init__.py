"""Checks between ranks; a silent rank is named, not waited for."""
