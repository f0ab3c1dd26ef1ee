"""`pretrain checkpoint`: look into checkpoints of this program and of others, verify and convert them."""

from __future__ import annotations

import click

from pretrain.tools.convert.commands import convert, fitting_recipe, inspect, verify


@click.group()
def command() -> None:
    """Look into checkpoints, verify and convert them.

    They may be this program's, Megatron-LM's, DeepSpeed's, GPT-NeoX's or Hugging Face's.
    """


for each in (inspect.command, verify.command, convert.command, fitting_recipe.command):
    command.add_command(each)
