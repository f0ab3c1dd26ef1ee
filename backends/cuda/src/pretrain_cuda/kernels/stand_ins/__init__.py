"""Stand-ins of the kernels for torch's fake tensors: what each keeps and allocates (`pretrain.plugins.stand_in`)."""
