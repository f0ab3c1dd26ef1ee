"""Reading of the scripts and settings with which other programs are started."""
