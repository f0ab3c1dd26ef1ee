"""`pretrain align` of an NPU against the CPU: nothing differs by more than the dtype explains."""

import json

import pytest

from cli.trained import call, write_recipe
from pretrain.plugins.backend import Unavailable
from pretrain_ascend.backend import AscendBackend

if isinstance(answer := AscendBackend().availability(), Unavailable):
    pytest.skip(f"no NPU: {answer.reason}", allow_module_level=True)

LAYOUTS = {"same": (), "tensor": ("--set-against", "parallel.tensor_model_parallel_size=2")}
MODELS = {
    "gpt2": (),
    "llama": (
        *("--set", "model.position_embedding_type=rope"),
        *("--set", "model.normalization=RMSNorm"),
        *("--set", "model.activation=swiglu"),
    ),
}


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_npu_and_the_cpu_are_aligned(dtype, model, layout, tmp_path, capfd):
    arguments = ("--set", f"precision.dtype={dtype}", *MODELS[model], *LAYOUTS[layout])

    code = call("align", write_recipe(tmp_path), "--backend", "ascend", "--against", "cpu", *arguments, "--json")

    found = json.loads(capfd.readouterr().out)
    assert (code, found["aligned"]) == (0, True), found["text"]
    assert found["wrong_calls"] == found["wrong_in_both"] == []
    assert [side["kernels"]["backend"] for side in found["sides"]] == ["ascend", "cpu"]
