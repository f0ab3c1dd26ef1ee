"""A report: why ranks do not get on, in words."""
