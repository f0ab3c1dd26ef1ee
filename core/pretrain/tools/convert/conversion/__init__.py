"""Targets of a conversion: their files, written block by block and continued where they were left."""
