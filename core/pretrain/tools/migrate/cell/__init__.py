"""Scripts are run by their user's own bash, in a cell where nothing of the machine can be written."""
