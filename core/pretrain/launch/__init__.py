"""Launch of a run: ranks that another program started are used as they are, otherwise `pretrain` starts its own."""
