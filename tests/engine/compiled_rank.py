"""`engine.ranks` with layers that are traced as for the compiler and then run eagerly, which takes seconds."""

from __future__ import annotations

from engine.ranks import main
from pretrain.bridge import megatron
from pretrain.cpu.backend import CpuBackend

if __name__ == "__main__":
    megatron.install(CpuBackend())
    from pretrain.model import compiled

    compiled.BACKEND = "aot_eager"
    main()
