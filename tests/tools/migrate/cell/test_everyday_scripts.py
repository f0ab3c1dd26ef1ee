"""Scripts as people write them give the recipe of the arguments with which bash itself starts the training."""

from __future__ import annotations

import os
import subprocess

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.migration import migrate
from pretrain.tools.migrate.setting import MigrateOptions
from pretrain.tools.migrate.sources.recognition import read_source
from pretrain.tools.migrate.sources.script import read_arguments
from tools.migrate.cell.namespaces import needs_cell

pytestmark = needs_cell

SHAPE = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32"
STEPS = "--micro-batch-size 2 --global-batch-size 8 --train-iters 10 --lr 1e-3 --bf16"
DATA = "--data-path d --vocab-file v --merge-file m"
ALL = f"{SHAPE} {STEPS} {DATA}"

COMMON = f"""
COMMON="{ALL}"
SEED=7
"""

TRAIN = f"python pretrain_gpt.py {ALL}"

SCRIPTS = {
    "text variables": f'MODEL="{SHAPE}"\nSTEPS="{STEPS}"\ntorchrun pretrain_gpt.py $MODEL $STEPS {DATA}\n',
    "arrays": f"A=({SHAPE})\nA+=({STEPS} --split '969, 30, 1')\ntorchrun pretrain_gpt.py \"${{A[@]}}\" {DATA}\n",
    "functions": f'run() {{ local n=$1; shift; {TRAIN} --seed "$n" "$@"; }}\nrun 5 --clip-grad 0.5\n',
    "optional arguments of functions": f'f() {{ echo "--seed $1" $2; }}\n{TRAIN} $(f 3)\n',
    "associative arrays": f"declare -A S=([7b]=3 [1.3b]=4)\nSIZE=1.3b\n{TRAIN} --seed ${{S[$SIZE]}}\n",
    "shared settings": 'source "$(dirname "$0")/common.sh"\npython pretrain_gpt.py $COMMON --seed $SEED\n',
    "its own folder": """
D="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. $D/common.sh
python pretrain_gpt.py $COMMON
""",
    "env file": f"set -a; source ./values.env; set +a\n{TRAIN} --seed $NUMBER --save $FOLDER/$NAME\n",
    "exported lines": f"export $(grep -v '^#' values.env | xargs)\n{TRAIN} --seed $NUMBER\n",
    "case and loops": f"""
for size in small large; do
  case $size in large) L=4 ;;& *) H=64 ;; esac
done
until [ ${{L:-0}} -ge 6 ]; do L=$((L + 1)); done
{TRAIN} --num-layers $L
""",
    "getopts": f"""
TP=1
while getopts "t:s:" o; do case $o in t) TP=$OPTARG ;; s) S=$OPTARG ;; esac; done
{TRAIN} --tensor-model-parallel-size $TP --seed ${{S:-9}}
""",
    "srun of a shell": f"""
export LAUNCH="python -u -m torch.distributed.run --nproc_per_node 4 --nnodes 2"
export CMD="pretrain_gpt.py {ALL}"
srun -N 2 bash -c "$LAUNCH --node_rank \\$SLURM_PROCID $CMD" 2>&1 | tee -a log.txt
""",
    "programs of the machine": f"""
L=$(echo "2 4" | awk '{{print $1 * $2}}')
S=$(printf '%s,' 90 5 5 | sed 's/,$//')
read -r A B <<< "3 0.5"
[[ lr=2e-4 =~ lr=(.*) ]] && LR=${{BASH_REMATCH[1]}}
{TRAIN} --num-layers $L --split $S --seed $A --clip-grad $B --lr $LR
""",
    "a missing folder": f"set -e\nmkdir -p /nowhere/data/out\ncd /nowhere/data\n{TRAIN}\n",
    "strict": f"set -eu\nX=${{X:-}}\n[[ -n $X ]] && E=1\nexec /usr/bin/python3 pretrain_gpt.py {ALL} ${{E-}}\n",
}

RECORDING = '#!/bin/bash\nprintf \'%s\\0\' "$0" "$@" > $ARGV\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "common.sh").write_text(COMMON)
    (tmp_path / "values.env").write_text("# values\nNUMBER=11\nFOLDER=out\nNAME=run-1\n")
    return tmp_path


def argv_of_bash(folder, text):
    """Return what bash gives to the training, without any cell."""
    stubs = folder / "stubs"
    stubs.mkdir()
    for name in ("python", "torchrun"):
        (stubs / name).write_text(RECORDING)
        (stubs / name).chmod(0o755)
    (stubs / "srun").write_text('#!/bin/bash\nexport SLURM_PROCID=0\nexec "${@:3}"\n')
    (stubs / "srun").chmod(0o755)
    replaced = text.replace("/usr/bin/python3", "python").replace("/nowhere/data", str(folder / "scratch"))
    (folder / "bash.sh").write_text(replaced)
    environment = {"PATH": f"{stubs}:{os.environ['PATH']}", "HOME": "/", "ARGV": str(folder / "argv")}
    subprocess.run(["bash", "bash.sh"], env=environment, check=True, stdout=subprocess.DEVNULL)
    words = (folder / "argv").read_text().split("\0")[:-1]
    start = next(at for at, word in enumerate(words) if word.endswith("pretrain_gpt.py"))
    return words[start + 1 :]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_recipe_is_that_of_the_arguments_that_bash_gives(folder, name):
    (folder / "train.sh").write_text(SCRIPTS[name])
    source = read_source("train.sh", {})
    words = argv_of_bash(folder, SCRIPTS[name])
    assert [word.text for word in source.words] == words
    quoted = " ".join(f"'{word}'" for word in words)
    assert (
        migrate([source], MigrateOptions(devices=8)).recipe
        == migrate([read_arguments(quoted)], MigrateOptions(devices=8)).recipe
    )


@pytest.mark.parametrize(("arguments", "expected"), [("-t 4 -s 3 big", ("4", "3", "big")), ("", ("1", "9", "run"))])
def test_getopts_reads_the_arguments_that_are_given(folder, arguments, expected):
    options = 'TP=1\nwhile getopts "t:s:" o; do case $o in t) TP=$OPTARG ;; s) S=$OPTARG ;; esac; done\n'
    words = "--tensor-model-parallel-size $TP --seed ${S:-9} --save ${1:-run}"
    (folder / "train.sh").write_text(f"{options}shift $((OPTIND - 1))\n{TRAIN} {words}\n")
    source = read_source("train.sh", {"@": arguments} if arguments else {})
    assert tuple(word.text for word in source.words[-5::2]) == expected


def test_a_placeholder_is_asked_for(folder):
    """MindSpeed-LLM's scripts have such texts where their user has to write a path."""
    (folder / "train.sh").write_text(f'CKPT="your model ckpt path"\n{TRAIN} --save $CKPT\n')
    with pytest.raises(MigrateError, match=r"train.sh:2: CKPT is not known: \$CKPT\n.*Give --define CKPT=VALUE"):
        migrate([read_source("train.sh", {})], MigrateOptions(devices=8))
    given = read_source("train.sh", {"CKPT": "out"})
    assert given.words[-1].text == "out"


def test_a_deepspeed_file_of_a_strict_script_is_read_as_it_was_for_the_training(folder):
    text = (
        "#!/bin/bash -e\npython x.py\ncfg=ds.json\nMB=2\ncat <<EOT > $cfg\n"
        '{"train_micro_batch_size_per_gpu": $MB, "train_batch_size": 8}\nEOT\n'
        f"deepspeed --num_gpus 4 pretrain_gpt.py {ALL} --deepspeed --deepspeed_config $cfg\nrm $cfg\n"
    )
    (folder / "train.sh").write_text(text)
    source = read_source("train.sh", {})
    assert source.files == {"ds.json": '{"train_micro_batch_size_per_gpu": 2, "train_batch_size": 8}'}
    assert not (folder / "ds.json").exists()
    assert migrate([source], MigrateOptions()).recipe.train.micro_batch_size == 2
