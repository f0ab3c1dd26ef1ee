"""Arguments of a program, read as its own parser reads them, and the version of the program that they are for."""
