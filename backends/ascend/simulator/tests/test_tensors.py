"""Tensors of the simulated NPU: torch_npu's device, the CPU's arithmetic, and the faults that the CPU would hide."""

import pytest
import torch


@pytest.fixture
def x(npu):
    return torch.arange(6.0, device=npu).view(2, 3)


def test_torch_npu_is_the_real_one_with_a_simulated_device(npu):
    import torch_npu

    assert torch_npu.__version__.split("+")[0] == torch.__version__.split("+")[0]
    assert torch.npu.get_device_name(npu) == "Ascend910B3"
    assert torch.npu.device_count() == 8


@pytest.mark.parametrize(
    "call",
    [
        lambda x, left: x + left,
        lambda x, left: x @ left.mT,
        lambda x, left: x.mul_(left),
        lambda x, left: torch.cat((x, left)),
        lambda x, left: torch.where(x > 1, x, left),
        lambda x, left: torch.add(x, x, out=left),
        lambda x, left: torch._foreach_add([x], [left]),
        lambda x, left: torch.nn.functional.layer_norm(x, (3,), left[0]),
        lambda x, left: torch.ops.npu.npu_rms_norm(x, left[0]),
    ],
)
def test_a_tensor_that_was_left_on_the_cpu_is_an_error(x, call):
    with pytest.raises(RuntimeError, match="same device"):
        call(x, torch.ones(2, 3))


def test_so_is_one_on_another_npu(x):
    with pytest.raises(RuntimeError, match="npu:0 and npu:1"):
        x + torch.ones(2, 3, device="npu:1")


def test_a_number_may_be_on_the_cpu(x):
    assert (x * torch.tensor(2.0)).sum().item() == 30


def test_views_share_their_memory(x):
    x[:, 1].mul_(10)
    x.t()[2] += 1
    assert x.tolist() == [[0, 10, 3], [3, 40, 6]]


def test_results_keep_device_and_strides(x):
    assert (x.t() * 2).stride() == (1, 3)
    assert (x * 2).device == x.device


def test_an_empty_out_is_resized(x):
    out = torch.empty(0, device=x.device)
    torch.add(x, 1, out=out)
    assert out.tolist() == (x + 1).tolist()


def test_fresh_memory_is_not_zero(npu):
    torch.npu.empty_cache()
    assert torch.empty(5_000_000, device=npu).isnan().all()


def test_memory_is_counted(npu):
    kept = torch.ones(1 << 20, device=npu)
    size, with_it = kept.nbytes, torch.npu.memory_allocated()
    del kept  # other tests' garbage may be freed at any time: that only adds to the difference
    assert with_it - torch.npu.memory_allocated() >= size


def test_more_than_the_memory_is_out_of_memory(npu, monkeypatch):
    monkeypatch.setenv("ASCEND_SIMULATOR_MEMORY_MB", "64")
    torch.npu.empty_cache()  # a block that another test has left would do
    with pytest.raises(RuntimeError, match="out of memory"):  # torch.OutOfMemoryError from 2.10 on
        torch.empty(65 << 20, dtype=torch.uint8, device=npu)
    monkeypatch.undo()
    assert torch.empty(65 << 20, dtype=torch.uint8, device=npu).numel() == 65 << 20


def test_random_numbers_follow_the_npu_s_generator(npu):
    state = torch.npu.get_rng_state()
    cpu = torch.get_rng_state()
    first, second = torch.randn(8, device=npu), torch.randn(8, device=npu)
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.randn(8, device=npu), first)
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), cpu)


def test_dropout_keeps_its_share_and_its_gradient(npu):
    x = torch.ones(20_000, device=npu, requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    assert torch.equal(x.grad, y)
    assert sorted(y.unique().tolist()) == pytest.approx([0, 4 / 3])
    assert y.mean().item() == pytest.approx(1, abs=0.02)


def test_the_fused_adamw_is_torch_s(npu):
    weights = [torch.linspace(-1, 1, 8).to(device).requires_grad_() for device in ("cpu", npu)]
    for weight in weights:
        optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.1, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
    assert torch.equal(weights[0], weights[1].cpu())
