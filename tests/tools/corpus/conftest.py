"""Fixtures of token files, which the tests of reading them have too."""

from data.conftest import bridged, bytes_section, corpus, small_as_large, small_recipe, token_files

__all__ = ["bridged", "bytes_section", "corpus", "small_as_large", "small_recipe", "token_files"]
