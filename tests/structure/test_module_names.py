"""Modules of one name are about one thing: a name that stands in several folders is listed here with its meaning."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

from structure.sources import backends, core

MEANINGS = {
    # an operation: its model part, its kernels in every backend, its conformance class, its section in a recipe
    "activation": "the operation: bias and activation of the MLP",
    "attention": "the operation: attention without projections",
    "bias_dropout_add": "the operation: residual + dropout(x + bias)",
    "collectives": "the operation: communication in process groups, and the groups' options",
    "cross_entropy": "the operation: vocabulary-parallel cross entropy",
    "linear": "the operation: a tensor-parallel linear layer",
    "norm": "the operation: layer norm and RMS norm",
    "optimizer": "the operation: Adam and the gradient norm",
    "rotary": "the operation: rotary position embedding",
    "softmax": "the operation: scale, mask and softmax",
    "sdpa": "a kernel for attention: torch's scaled_dot_product_attention",
    "triangle": "a kernel for attention: only blocks on and below the diagonal",
    "masks": "attention masks as tensors",
    # a backend
    "backend": "the device as an object: its interface, and each backend's",
    "device_module": "the names of torch's device module that are used, and their test",
    "devices": "the device's models by name, and their FLOP/s",
    "environment": "the environment variables of a rank that a backend sets",
    "plugin": "a plugin's hooks",
    "software": "the driver and the libraries that a device needs",
    # a recipe's section, and who reads it
    "batch": "the sizes of batches in a recipe, and in a DeepSpeed file",
    "checkpoint": "a saved state: its section, and megatron-core's writer of it",
    "data": "token files: their section, and the command that makes them",
    "engine": "an engine: its section, and each engine",
    "evaluation": "loss and perplexity on held-out text: its section, and its calculation",
    "inputs": "the files that a run or a build reads, looked for before it starts",
    "kernels": "the kernels of a run: the section that names them, and the negotiated ones",
    "precision": "the dtype of the computation, in a recipe and in a DeepSpeed file",
    "schedule": "the learning rate over a training: its section, its check, and megatron-core's scheduler",
    "stages": "the layers of pipeline stages: their numbers, and the check of a recipe's",
    "tokenizer": "a tokenizer: its section, its interface, and the command that makes one",
    "zero": "ZeRO's settings, in a recipe and in a DeepSpeed file",
    # another program's settings
    "batches": "the samples that ranks take together: their order, and the keys of their sizes",
    "functions": "the functions of a dialect by the key that they work out",
    "layout": "the model over the ranks: the check of a recipe, and the keys that say it",
    "learning_rate": "the keys of the schedule and the optimizer, of a dialect",
    "meanings": "the meaning of every setting of a dialect",
    "recognition": "what a file is, by its content: a checkpoint, a source of settings",
    "running": "the keys of checkpoints, evaluation and logging, of a dialect",
    "shape": "the shape of the model: the check of a recipe, and the keys that say it",
    "text": "the keys of the tokenizer and the data, of a dialect",
    "translation": "settings of another program as keys of a recipe, while they are collected",
    # what a package does with its thing
    "command": "a command of `pretrain`, with the tool that it calls",
    "build": "builds what its package is about: token files, an engine, a model",
    "config": "a recipe as the configuration object of a library",
    "convert": "a checkpoint in another format: the command, and what it does",
    "datasets": "a recipe's datasets over its token files: megatron-core's, and the native ones",
    "load": "loads what its package is about from files: a recipe, a tokenizer",
    "names": "a library's names and ours: of modules that are imported, of weights in a format",
    "reading": "reads the files of its package: sources of text, token files, a format of checkpoints",
    "requests": "the requests for kernels: their classes, and those that a recipe makes",
    "sharded": "megatron-core's sharded checkpoints: what one is, and its weights",
    "verify": "whether a checkpoint is intact and equals another: the command, and what it does",
    "writing": "writes the files of its package: token files, a format of checkpoints",
    "run": "one training: the command, and the composition root on a rank",
}
"""Name of modules in several folders of the core and the backends -> the thing that all of them are about."""


def test_every_repeated_name_has_one_meaning():
    """A second module of a name needs the same meaning, and an entry; else the more specific one is renamed."""
    paths = (PurePosixPath(source.name) for source in core() + backends())
    count = Counter(path.stem for path in paths if path.stem != "__init__")
    assert {name for name, times in count.items() if times > 1} == set(MEANINGS)
