"""An incomplete abacus, which computes but cannot be trained on; the kit loads it as `abacus.lame`."""

import torch_abacus.runtime
from pretrain_abacus.plugin import AbacusBackend

from pretrain.plugins import hookimpl

del torch_abacus.runtime.get_rng_state
torch_abacus.runtime.manual_seed = lambda seed: None


class LameBackend(AbacusBackend):
    def pinned_memory(self):
        return True


@hookimpl
def pretrain_backend():
    return LameBackend()
