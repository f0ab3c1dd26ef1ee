"""The one training of a script is found; others are refused by their names."""

from __future__ import annotations

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.sources.script import split_words
from pretrain.tools.migrate.sources.training import batch_options, batch_variables, sort_commands, training_of


def commands(text):
    """Return words of each line, with its own place."""
    lines = ("\n" * number + line for number, line in enumerate(text.strip().split("\n")))
    return [split_words("a.sh", line, {}) for line in lines]


def sorted_(text):
    return sort_commands(commands(text), {})


def training(text):
    return training_of("a.sh", sorted_(text))


def refusal(text):
    with pytest.raises(MigrateError) as error:
        training(text)
    return str(error.value)


@pytest.mark.parametrize(
    "command",
    [
        "python pretrain_gpt.py --lr 1",
        "torchrun a/b/pretrain_gpt2.py --lr 1",
        "deepspeed $DIR/pretrain_gpt_core.py --lr 1",
        "python ./deepy.py train.py -d configs 20B.yml",
        "python deepy.py pretrain_gpt2.py -d configs 20B",
        "python train.py a.yml b.yml",
    ],
)
def test_trainings_that_are_read(command):
    assert training(f"mkdir x\n{command}\npython tools/convert.py").words[0].place.line == 2


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("python pretrain_bert.py --lr 1", "a.sh:1: pretrain_bert.py trains BERT"),
        ("torchrun x/pretrain_t5.py", "pretrain_t5.py trains T5"),
        ("torchrun pretrain_vision_dino.py", "pretrain_vision_dino.py trains vision models"),
        ("torchrun train_rl.py", "train_rl.py trains by reinforcement learning"),
        ("python tasks/main.py --task RACE", "tasks/main.py runs a downstream task"),
        ("python tools/run_text_generation_server.py", "run_text_generation_server.py generates text"),
        ("python tools/merge_datasets.py", "tools/merge_datasets.py is a tool"),
        ("python deepy.py generate.py -d configs x.yml", "generate.py generates text"),
        ("python train.py --lr 1", "train.py is not a program that migrate knows"),
    ],
)
def test_other_programs_are_refused_by_name(command, what):
    assert what in refusal(command)
    assert "pretrain_gpt.py" in refusal(command)


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("bash train.sh $X", "a.sh starts no training, but the script train.sh.\nGive that one"),
        ("sbatch job.slurm", "the script job.slurm."),
        (
            "python $PROGRAM --lr 1",
            "a.sh:1: the name of the program that starts here is not known.\nGive --define PROGRAM=...",
        ),
        (
            "python a.py\npython $B",
            "a.sh:1: a.py is not a program that migrate knows\na.sh:2: the name of the program that starts",
        ),
        ("make all", "it starts make"),
        ("echo pretrain_gpt.py", "it starts no program"),
    ],
)
def test_a_script_without_a_training_is_refused(command, what):
    assert what in refusal(command)


def test_preprocessing_needs_no_training():
    text = "python tools/preprocess_data.py --input a --vocab b\npython tools/preprocess_data.py --input c"
    assert training(text) is None
    found = [[word.text for word in words] for words in sorted_(text).preprocessing]
    assert found == [["--input", "a", "--vocab", "b"], ["--input", "c"]]


def test_several_trainings_are_refused_with_their_lines():
    text = "torchrun pretrain_gpt.py --lr 1\ntorchrun pretrain_gpt.py --lr 2"
    assert "several trainings with different arguments: a.sh:1, a.sh:2" in refusal(text)
    assert "several trainings" in refusal("torchrun pretrain_gpt.py --lr $A\ntorchrun pretrain_gpt.py --lr $B")


def test_the_same_training_may_be_started_in_several_ways():
    found = training(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --lr 1\ntorchrun --nproc_per_node 4 pretrain_gpt.py --lr 1"
    )
    assert (found.launch.nproc, found.launch.nnodes) == (None, 1)
    assert training("torchrun pretrain_gpt.py --lr 1\npython pretrain_gpt.py --lr 1").launch is None


SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=4 --job-name x
#SBATCH -n32
#SBATCH --ntasks-per-node 8 # a comment
#SBATCH --gpus-per-node=$N
#SBATCH # nothing
##SBATCH --nodes=5
# SBATCH --nodes=6
srun --nnodes $SLURM_NNODES ${SLURM_NTASKS}
"""


def test_options_have_their_lines():
    options = batch_options("a.sh", SCRIPT)
    assert {name: (word.text, word.place.line) for name, word in options.items()} == {
        "nodes": ("4", 2),
        "ntasks": ("32", 3),
        "ntasks_per_node": ("8", 4),
        "gpus_per_node": ("$N", 5),
    }


def test_slurm_sets_variables_by_them():
    defined, notices = batch_variables(batch_options("a.sh", SCRIPT), SCRIPT)
    assert defined == {"SLURM_NNODES": "4", "SLURM_NTASKS": "32"}
    assert notices[0] == "a.sh:2: SLURM_NNODES is taken as 4, which --nodes says"
