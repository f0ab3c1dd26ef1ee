"""Who runs where: ranks that others started are used as they are, otherwise `pretrain` starts its own."""
