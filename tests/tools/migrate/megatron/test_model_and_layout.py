"""Keys of the model and of its layout that several flags decide."""

from __future__ import annotations

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.migration import migrate
from pretrain.tools.migrate.setting import MigrateOptions
from pretrain.tools.migrate.sources.recognition import read_sources
from tools.migrate.megatron.small_training import FILES, SIZES, line_of, migrated

ITERATIONS = "--train-iters 9"
STAGES = "--pipeline-model-parallel-size 2 --account-for-embedding-in-pipeline-split"


def test_the_embedding_counts_as_a_layer_of_a_chunk():
    common = SIZES.replace("--num-layers 4", "--num-layers 6")
    batch = f"--micro-batch-size 2 --global-batch-size 8 {FILES} --data-path d"
    ends = f"{STAGES} --account-for-loss-in-pipeline-split --num-layers-per-virtual-pipeline-stage 2"
    parallel = migrated(f"{ITERATIONS} {ends}", common=f"{common} {batch}").recipe.parallel
    assert (parallel.virtual_pipeline_model_parallel_size, parallel.pipeline_layers) == (2, (1, 2, 2, 1))


@pytest.mark.parametrize("stages", [0, -2])
def test_too_few_stages_are_refused_with_their_place(stages):
    flags = f"--pipeline-model-parallel-size {stages} --pipeline-model-parallel-layout 'Et*2|t*2L'"
    with pytest.raises(MigrateError, match=r"--args: --pipeline-model-parallel-size: -?\d pipeline stages"):
        migrated(f"{ITERATIONS} {flags}")


@pytest.mark.parametrize(
    ("version", "flags", "in_fp32"),
    [
        ("1.0", "--fp16", False),
        ("2020.08", "--fp16 --attention-softmax-in-fp32", True),
        ("2.0", "--fp16 --no-query-key-layer-scaling", True),
        ("2.0", "--fp16 --no-query-key-layer-scaling --no-scaled-masked-softmax-fusion", False),
        ("2.5", "--fp16 --no-query-key-layer-scaling", True),
    ],
)
def test_the_softmax_is_in_fp32_where_the_version_fuses_it(version, flags, in_fp32):
    is_old = version in {"1.0", "2020.08"}
    batch = "--batch-size 2" if is_old else "--micro-batch-size 2 --global-batch-size 2"
    common = f"{SIZES} {batch} {FILES} --data-path d {ITERATIONS}"
    found = migrated(flags, common=common, program=f"megatron-lm-{version}", devices=1)
    assert found.recipe.model.attention_softmax_in_fp32 is in_fp32


@pytest.mark.parametrize(("given", "window"), [("511,0", 512), ("'(7, 0)'", 8), ("0,0", 1), ("=-1,0", None)])
def test_the_window_counts_the_token_itself(given, window):
    """They count the keys before it: get_sliding_window_causal_mask of megatron-core."""
    found = migrated(f"{ITERATIONS} --window-size{given if given[0] == '=' else f' {given}'}")
    assert found.recipe.model.window_size == window
    assert found.is_complete


def test_a_flag_that_decides_a_key_is_carried_over():
    found = migrated(f"{ITERATIONS} --use-legacy-models --transformer-impl local --openai-gelu")
    assert found.recipe.model.activation == "gelu_tanh"
    assert line_of(found, "--use-legacy-models") == ("carried over", "model.activation")


YAML = """\
language_model:
  num_layers: 4
  hidden_size: 64
  num_attention_heads: 4
  num_query_groups: 2
  activation_func: {activation}
  bias_gelu_fusion: true
model_parallel: {{tensor_model_parallel_size: 1}}
seq_length: 32
max_position_embeddings: 32
lr: 1.0e-4
micro_batch_size: {micro}
global_batch_size: 8
train_iters: 9
data_path: d
vocab_file: v.json
merge_file: m.txt
swiglu: true
"""


@pytest.fixture
def of_yaml(tmp_path, monkeypatch):
    """Return a function from values of the file to its migration."""
    monkeypatch.chdir(tmp_path)

    def one(activation="gelu", micro="2"):
        (tmp_path / "gpt.yaml").write_text(YAML.format(activation=activation, micro=micro))
        return migrate(read_sources(["gpt.yaml"], {}), MigrateOptions())

    return one


def test_groups_of_queries_count_in_a_file_without_their_switch(of_yaml):
    assert of_yaml().recipe.model.num_query_groups == 2


@pytest.mark.parametrize(("activation", "ours"), [("gelu", "gelu"), ("swiglu", "swiglu")])
def test_the_activation_of_a_file_is_its_activation_func(of_yaml, activation, ours):
    found = of_yaml(activation)
    assert found.recipe.model.activation == ours
    assert line_of(found, "activation_func")[0] == "carried over"
    assert line_of(found, "swiglu") == ("no effect", "activation_func of the file says the activation")
    assert line_of(found, "bias_gelu_fusion")[0] == "no effect"


@pytest.mark.parametrize("micro", ['"2"', "2.5", "true", "[2]"])
def test_a_value_of_another_type_is_refused_with_its_line(of_yaml, micro):
    with pytest.raises(MigrateError, match=r"gpt\.yaml:12: micro_batch_size: .* is not a whole number"):
        of_yaml(micro=micro)
