"""Two ranks: a read before the wait gets the old values, and every collective gives the result of HCCL's."""

import pytest

from simulator_kit import programs

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("ranks")]  # one worker: one start of the program


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hccl")
    # Without a wait, results come after a minute: later than the slowest machine reads.
    return programs.run("two_ranks", ranks=2, ASCEND_SIMULATOR_FOLDER=str(folder), ASCEND_SIMULATOR_DELAY_MS="60000")


def test_a_tensor_that_is_read_before_wait_is_not_reduced(found):
    for rank in (0, 1):
        assert found[rank]["before wait"] == [rank + 1.0] * 4
        assert found[rank]["after wait"] == [3.0] * 4


def test_a_kernel_that_was_not_told_to_wait_uses_what_was_there_before(found):
    for rank in (0, 1):
        assert found[rank]["used before wait"] == [10.0 * (rank + 1)] * 4
        assert found[rank]["used after wait"] == [30.0] * 4


EXPECTED = {
    "max": [3.0] * 4,
    "min": [2.0] * 4,
    "product": [6.0] * 4,
    "torch.bfloat16": [3.0] * 4,
    "torch.float16": [3.0] * 4,
    "torch.int64": [3] * 4,
    "torch.int32": [3] * 4,
    "torch.int8": [3] * 4,
    "all_gather": [[0.0, 0.0], [1.0, 1.0]],
    "broadcast": [1.0, 1.0],
    "objects": [{"from": 0}, {"from": 1}],
    "messages": [1.0, 2.0, 3.0],
}


@pytest.mark.parametrize("call", EXPECTED)
def test_both_ranks_have(found, call):
    assert found[0][call] == found[1][call] == EXPECTED[call]


def test_each_rank_has_its_part(found):
    assert [result["reduce_scatter"] for result in found] == [[0.0, 2.0], [4.0, 6.0]]
    assert [result["all_to_all"] for result in found] == [[0.0, 10.0], [1.0, 11.0]]
    assert [result["batch"] for result in found] == [[6.0, 6.0], [5.0, 5.0]]


def test_float64_is_refused_as_hccl_does(found):
    assert "Unsupported data type" in found[0]["float64"]


def test_so_is_a_product_of_bfloat16_and_not_of_int8(found):
    assert "bf16 product" in found[0]
    assert found[0]["bf16 product"] != ""
    assert found[0]["int8 product on hccl"] == ""


def test_the_backend_s_buffer_of_a_group_reaches_hccl(found):
    for rank in (0, 1):
        assert [found[rank][f"buffer of {group}"] for group in ("tp", "mp", "dp")] == [48, 16, None]


def test_torch_npu_drops_the_priority_of_a_group(found):
    """The backend offers none for that reason; a failure means that a release takes it."""
    assert [result["priority after it was asked for"] for result in found] == [False, False]


def test_groups_come_and_go_and_leave_no_files(found):
    assert [result["folders left"] for result in found] == [0, 0]


def test_ranks_that_call_different_things_are_told_so(found):
    words = " ".join(result["mismatch"] for result in found)
    assert "HcclAllReduce of 4 float32, sum" in words
    assert "HcclAllReduce of 5 float32, sum" in words
