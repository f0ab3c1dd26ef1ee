"""Watches over a training: losses that go wrong, replicas that differ, ranks that are slow."""
