"""megatron-core's GPTModel of a recipe, with the negotiated kernels; install the bridge before importing it."""
