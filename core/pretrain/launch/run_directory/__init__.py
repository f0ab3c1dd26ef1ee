"""The run directory: its checks, its lock, and its preparation before the ranks train."""
