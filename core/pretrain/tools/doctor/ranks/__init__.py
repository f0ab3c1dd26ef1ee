"""Checks between ranks: who is there, links, clocks, equal files; a rank that is silent is named, not waited for."""
