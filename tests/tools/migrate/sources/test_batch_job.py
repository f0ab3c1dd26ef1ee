"""Slurm's options in comments count nodes and tasks."""

from __future__ import annotations

from pretrain.tools.migrate.sources.training import batch_options, batch_variables

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
