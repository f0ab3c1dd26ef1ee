"""Samples whose order is computed: nothing is built, written or waited for, and a blend may change at a resume."""
