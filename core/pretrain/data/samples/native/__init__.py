"""Samples in a computed order: no index is built, written or waited for, and a blend may change at a resume."""
