"""Values of a shell: variables, and the words that expansions make of them."""
