"""Sources of text: files, patterns, archives, tables and folders."""
