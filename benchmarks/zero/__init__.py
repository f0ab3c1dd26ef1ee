"""Memory and time of the ZeRO stages, against the paper and the megatron engine."""
