"""`pretrain checkpoint`: look into checkpoints of this program and of others, verify and convert them."""

from __future__ import annotations

import click

from pretrain.tools.convert.commands.convert import convert_command


@click.group()
def command() -> None:
    """Look into checkpoints, verify and convert them.

    They may be this program's, Megatron-LM's, DeepSpeed's, GPT-NeoX's or Hugging Face's.
    """


for each in (inspect_command, verify_command, convert_command, recipe_command):
    command.add_command(each)
