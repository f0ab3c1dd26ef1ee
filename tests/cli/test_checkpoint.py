"""`pretrain checkpoint` as users meet it."""

import json

import pytest

from pretrain.cli.main import main
from tools.convert import written

MEGATRON = """\
format:     Megatron-LM, one file a rank (3.0)
iteration:  5,000
parameters: 59,584
dtype:      fp16
layout:     tensor 2 x pipeline 2
contents:   weights, optimizer, rng, schedule
files:      4, """


@pytest.fixture
def call(capsys):
    """Run the command; return its exit code and what it printed."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["checkpoint", *map(str, arguments)])
        return (ended.value.code, *capsys.readouterr())

    return run


def test_a_checkpoint_is_described_on_one_screen(call, tmp_path):
    written.megatron(tmp_path)
    code, out, err = call("inspect", tmp_path)
    assert (code, err) == (0, "")
    first, rest = out.split("\n", 1)
    assert first == f"path:       {tmp_path}/iter_0005000"
    assert rest.startswith(MEGATRON)
    assert "model:\n" in rest
    assert "  num_attention_heads: 4\n" in rest
    assert "  untie_embeddings_and_output_weights: false\n" in rest


def test_the_same_as_json(call, tmp_path):
    written.release(tmp_path)
    code, out, _ = call("inspect", tmp_path, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["format"], found["iteration"], found["parameters"]) == ("Megatron-LM, one file a rank", None, 59584)
    assert found["parts"] == {"tensor": 1, "pipeline": 1, "virtual_pipeline": 1, "expert": 1, "data": 1}
    assert found["model"]["num_layers"] == 4


def test_what_is_no_checkpoint_is_an_error_of_two_lines(call, tmp_path):
    code, out, err = call("inspect", tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith(f"{tmp_path} has no checkpoint of a known format.")
    assert len(err.splitlines()) == 2
