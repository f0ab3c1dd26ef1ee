"""Version of this program's format of checkpoints."""

FORMAT = 3
"""A new one when older readers would misread it."""

WITHOUT_CHECKSUMS = 2
"""The format of before checksums, which is read too."""
