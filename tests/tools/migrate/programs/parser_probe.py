"""Print the flags of one checkout of a program as JSON: run by extract_flags.py, in a process for each checkout.

The program's own argument parser is built by the program's own code; nothing is parsed and no training is started.
What that code imports beside torch is replaced by stand-ins: compiled extensions, DeepSpeed, and libraries that are
not installed. DeepSpeed's own flags (deepspeed.add_config_arguments) are therefore written down here.

Use: python parser_probe.py CHECKOUT
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import sys
import types
import typing
from pathlib import Path
from unittest.mock import MagicMock

import packaging.version
import typing_extensions

STAND_INS = frozenset((
    "amp_C", "apex", "deepspeed", "emerging_optimizers", "flash_attn", "modelopt", "nltk", "nvidia_resiliency_ext",
    "one_logger_utils", "pynvml", "regex", "sentencepiece", "six", "tiktoken", "torchvision", "tqdm",
    "transformer_engine", "transformer_engine_torch", "transformers", "wandb",
))  # fmt: skip
LIBRARY_VERSION = "1.9.0"


class StandIn(types.ModuleType):
    """A module with every attribute: a class for a name in capitals, else an object that can be called."""

    __path__ = ()
    __version__ = LIBRARY_VERSION

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].isupper():
            return type(name, (), {"is_rocm_pytorch": staticmethod(lambda: False)})
        return MagicMock(name=name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins, and `megatron` only in the checkout: an installed megatron-core would be mixed in."""

    def __init__(self, checkout):
        self.checkout = str(checkout)

    def find_spec(self, name, path, target=None):
        root = name.partition(".")[0]
        if root in STAND_INS or name == "torch._six":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if root != "megatron":
            return None
        places = [self.checkout] if path is None else [place for place in path if place.startswith(self.checkout)]
        return importlib.machinery.PathFinder.find_spec(name, places)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        if module.__name__ == "deepspeed":
            module.add_config_arguments = add_config_arguments


def add_config_arguments(parser):
    """Add the flags of DeepSpeed's function of this name, with --deepspeed_mpi, which it had until 2023."""
    for switch in ("--deepspeed", "--deepscale", "--deepspeed_mpi"):
        parser.add_argument(switch, action="store_true")
    for option in ("--deepspeed_config", "--deepscale_config"):
        parser.add_argument(option)
    return parser


class ParserBuiltError(Exception):
    """Carries a parser out of the program's code at the moment at which it would parse."""


def stop(parser, *args, **options):
    raise ParserBuiltError(parser)


def prepare(checkout):
    """Make the checkout's modules importable."""
    checkout = checkout.resolve()
    sys.path.insert(0, str(checkout))
    sys.meta_path.insert(0, Finder(checkout))
    sys.argv = ["probe"]
    typing.override = typing_extensions.override  # Python 3.12's
    packages = types.ModuleType("pkg_resources")
    packages.packaging = packaging
    packages.parse_version = packaging.version.parse
    sys.modules["pkg_resources"] = packages
    installed = importlib.metadata.version

    def version(name):
        known = name.startswith(("transformer", "flash"))
        return LIBRARY_VERSION if known else installed(name)

    importlib.metadata.version = version
    argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_known_args = stop


def call_of_pretrain(checkout):
    """Return the defaults that pretrain_gpt.py passes on, and whether it adds ModelOpt's flags."""
    script = next(path for name in ("pretrain_gpt.py", "pretrain_gpt2.py") if (path := checkout / name).exists())
    keywords = [
        keyword
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
    ]
    defaults = next(ast.literal_eval(each.value) for each in keywords if each.arg == "args_defaults")
    providers = [ast.unparse(each.value) for each in keywords if each.arg == "extra_args_provider"]
    if any("add_modelopt_args" not in provider for provider in providers):
        sys.exit(f"{script} adds flags that this probe does not know: {providers}")
    return defaults, bool(providers)


def megatron_parser(checkout):
    """Return the parser of pretrain_gpt.py, and defaults that it has beside."""
    defaults, has_modelopt = call_of_pretrain(checkout)
    is_new = (checkout / "megatron/training/arguments.py").exists()
    arguments = importlib.import_module("megatron.training.arguments" if is_new else "megatron.arguments")
    more = importlib.import_module("megatron.post_training.arguments").add_modelopt_args if has_modelopt else None
    try:
        arguments.parse_args(more)
    except ParserBuiltError as built:
        return built.args[0], defaults
    sys.exit("No parser was built.")


KINDS = {None: "str", str: "str", int: "int", float: "float", bool: "bool"}
PATTERNS = ("moe_freq_type", "la_freq_type", "no_rope_freq_type")


def megatron_flags(checkout):
    """Return the flags of pretrain_gpt.py, and whether its parser takes beginnings of flags."""
    parser, defaults = megatron_parser(checkout)
    flags: list[dict[str, typing.Any]] = []
    first = {}
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        default = first.setdefault(action.dest, action.default)  # argparse takes the first of several
        if default is None:
            default = defaults.get(action.dest)
        flags.extend(described | {"default": of_kind(described["kind"], default)} for described in describe(action))
    return {"prefixes": parser.allow_abbrev, "flags": flags}


def of_kind(kind, default):
    """Return a default as plain value; 1.0 of a flag that takes ints as 1."""
    is_whole = isinstance(default, float) and default.is_integer()
    return int(default) if kind == "int" and is_whole else plain(default)


def describe(action):
    """Yield a flag for an action; two for one with --x and --no-x."""
    common = {"name": action.dest, "nargs": None, "given": None, "choices": []}
    spellings = action.option_strings
    if isinstance(action, argparse.BooleanOptionalAction):
        no = [spelling for spelling in spellings if spelling.startswith("--no-")]
        yes = [spelling for spelling in spellings if spelling not in no]
        yield common | {"spellings": yes, "kind": "switch", "given": True}
        yield common | {"spellings": no, "kind": "switch", "given": False}
    elif action.nargs == 0:
        yield common | {"spellings": spellings, "kind": "switch", "given": plain(action.const)}
    else:
        name = getattr(action.type, "__name__", "")
        kind = "pattern" if name in PATTERNS else KINDS.get(action.type, "str")
        values = {"nargs": action.nargs, "given": plain(action.const), "choices": plain(list(action.choices or ()))}
        yield common | {"spellings": spellings, "kind": kind} | values


def plain(value):
    """Return a value that JSON has: a member of an enum by its name."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    sys.exit(f"There is no JSON for {value!r}")


def neox_flags(checkout):
    """Return the keys of GPT-NeoX's files: fields of its dataclasses."""
    package = types.ModuleType("neox_arguments")
    package.__path__ = [str(checkout / "megatron/neox_arguments")]
    sys.modules["neox_arguments"] = package
    modules = [importlib.import_module(f"neox_arguments.{name}") for name in ("deepspeed_args", "neox_args")]
    classes = [each for module in modules for each in vars(module).values() if dataclasses.is_dataclass(each)]
    found = {}
    for each in classes:
        types_of = typing.get_type_hints(each)
        for field in dataclasses.fields(each):
            found[field.name] = key(field, types_of[field.name])
    return {"prefixes": False, "flags": list(found.values())}


def key(field, annotation):
    """Describe a field; its default is that of the file, not of this machine."""
    default = None if field.name == "git_hash" else field.default
    if default is dataclasses.MISSING:
        default = field.default_factory()
    spellings = list(dict.fromkeys((field.name.replace("_", "-"), field.name)))
    kind, nargs, choices = key_type(annotation)
    return {
        "name": field.name, "spellings": spellings, "kind": kind, "nargs": nargs, "given": None, "choices": choices,
        "default": default,
    }  # fmt: skip


def key_type(annotation):
    """Return kind, nargs and choices of an annotation; a list, or a type of several forms, is an object."""
    parts = [part for part in typing.get_args(annotation) if part is not type(None)]
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return "str", None, parts
    if origin is typing.Union and len(parts) == 1:
        return key_type(parts[0])
    if origin is typing.Union and set(parts) == {int, float}:
        return "float", None, []
    if annotation is list:
        return "object", "*", []
    return KINDS.get(annotation, "object"), None, []


def main():
    checkout = Path(sys.argv[1]).resolve()
    prepare(checkout)
    is_neox = (checkout / "megatron/neox_arguments").exists()
    found = neox_flags(checkout) if is_neox else megatron_flags(checkout)
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
