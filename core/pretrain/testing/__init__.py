"""The conformance kit's name before contract 1.3: import `pretrain.conformance` instead."""
