"""Files of settings: GPT-NeoX's YAML with its command, and Megatron-LM's --yaml-cfg; each key with its line."""

# `NeoXArgs.from_ymls` (megatron/neox_arguments/arguments.py) takes PyYAML's FullLoader, merges files and reads a-b as
# a_b; a name with two values is an error here. The reader of recipes is stricter, and flattens less.

from __future__ import annotations

import argparse
import posixpath
import re
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Setting, SourceLine
from pretrain.tools.migrate.sources.files import Launch, MigrateSource, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pretrain.tools.migrate.setting import Word

_MERGE = "tag:yaml.org,2002:merge"
_DEEPEST = 20
_MOST = 20_000
"""Nodes of a file: nested aliases of a few lines would become gigabytes."""


class YamlBlock(dict[str, Any]):
    """Mapping of a YAML file that knows where its keys are."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, SourceLine] = {}  # of the keys


class _Loader(yaml.SafeLoader):
    """PyYAML's loader, which reads 1e-4 as a number too: GPT-NeoX itself stops at the text."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))


def read_block(text: str, source: str) -> YamlBlock:
    """Read a file's text: YAML, or JSON with comments and trailing commas, which is YAML too."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise MigrateError(_refused(source, 0 if node is None else node.start_mark.line + 1, "it has no keys"))
        return _Reader(loader, source).block(node, 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = error.problem or error.context or "it cannot be read"
        raise MigrateError(_refused(source, 0 if mark is None else mark.line + 1, why)) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise MigrateError(_refused(source, 0, why)) from error


def _refused(source: str, line: int, why: str) -> str:
    place = SourceLine(source, line)
    return f"{place}: this is not a YAML file of settings: {why}.\nGive a file such as GPT-NeoX's configs/20B.yml."


class _Reader:
    def __init__(self, loader: _Loader, source: str) -> None:
        self.loader, self.source, self.left = loader, source, _MOST

    def block(self, node: yaml.MappingNode, depth: int) -> YamlBlock:
        """Return a mapping; a key with two values is an error, of which PyYAML would take the last."""
        found, merged = YamlBlock(), list[YamlBlock]()
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged += self._merged(value_node, depth + 1)
                continue
            key, place = self._value(key_node, depth), SourceLine(self.source, key_node.start_mark.line + 1)
            if not isinstance(key, str):
                raise MigrateError(_refused(self.source, place.line, f"the key {key!r} is not a word"))
            value = self._value(value_node, depth + 1)
            if key in found and (found[key] != value or isinstance(value, dict)):
                msg = f"{place}: {key} is given twice, in line {found.places[key].line} too.\nRemove one of them."
                raise MigrateError(msg)
            found[key], found.places[key] = value, place
        for other in merged:
            for key in other.keys() - found.keys():
                found[key], found.places[key] = other[key], other.places[key]
        return found

    def _merged(self, node: yaml.Node, depth: int) -> list[YamlBlock]:
        """Return the mappings of a "<<", whose keys yield to those around it."""
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(each, yaml.MappingNode) for each in nodes):
            raise MigrateError(_refused(self.source, node.start_mark.line + 1, "<< needs a mapping"))
        return [block for block in (self._value(each, depth) for each in nodes) if isinstance(block, YamlBlock)]

    def _value(self, node: yaml.Node, depth: int) -> Any:
        self.left -= 1
        if depth > _DEEPEST or self.left < 0:
            raise MigrateError(_refused(self.source, node.start_mark.line + 1, "it has too many nested values"))
        if isinstance(node, yaml.MappingNode):
            return self.block(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, depth + 1) for item in node.value]
        return self.loader.construct_object(node)


_SECTIONS = ("language_model", "model_parallel")
"""`core_transformer_config_from_yaml` joins them; everything else stands at the top."""

_FLAGS = {"num_moe_experts": "num_experts", "layernorm_zero_centered_gamma": "apply_layernorm_1p"}
"""Names of `TransformerConfig` for which the flag has another one, with the same values."""

_ACTIVATIONS = ("swiglu", "squaredrelu", "gelu")
"""Values of activation_func (core_transformer_config_from_yaml); the flags swiglu and the like do not count there."""

_OBJECTS = (
    *("timers", "finalize_model_grads_func", "grad_scale_func", "no_sync_func", "grad_sync_func", "param_sync_func"),
    *("params_dtype", "pipeline_dtype", "autocast_dtype", "_cpu_offloading_context"),
)
"""Objects that Megatron-LM itself puts there; a file has null."""


def is_megatron_yaml(data: Mapping[Any, Any]) -> bool:
    """Return whether the content of a YAML file has a section of Megatron-LM's."""
    return any(isinstance(data.get(section), dict) for section in _SECTIONS)


def read_megatron_yaml(name: str, text: str, defined: Mapping[str, str]) -> MigrateSource:
    """Read a file for --yaml-cfg; its settings have the names of flags, and `defined` is for ${NAME} in it."""
    data = read_block(text, name)
    settings: dict[str, Setting] = {}
    for setting in _settings(data, defined):
        if setting.name in settings:
            first = settings[setting.name]
            msg = f"{setting.place}: {setting.written} is given in {first.place} too.\nRemove one of them."
            raise MigrateError(msg)
        settings[setting.name] = setting
    _check_activation(name, settings)
    return MigrateSource(name, "megatron_yaml", settings=settings)


def _settings(data: YamlBlock, defined: Mapping[str, str]) -> Iterator[Setting]:
    for key, value in data.items():
        if key in _SECTIONS and isinstance(value, YamlBlock):
            yield from _settings(value, defined)
        elif value is not None or key not in _OBJECTS:
            place = data.places[key]
            yield Setting(_FLAGS.get(key, key), _filled(value, place, defined), key, place)


def _filled(value: Any, place: SourceLine, defined: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_filled(item, place, defined) for item in value]
    if not isinstance(value, str):
        return value
    missing = [name for name in re.findall(r"\$\{(.*?)\}", value) if name not in defined]
    if missing:
        msg = f"{place}: {value}: ${{{missing[0]}}} is not known.\nGive --define {missing[0]}=..."
        raise MigrateError(msg)
    return re.sub(r"\$\{(.*?)\}", lambda found: defined[found[1]], value)


def _check_activation(name: str, settings: Mapping[str, Setting]) -> None:
    """Check the activation, of which the program has three names."""
    chosen = settings.get("activation_func")
    if chosen is None or chosen.value not in _ACTIVATIONS:
        given = f"{chosen.place}: activation_func: {chosen.value}" if chosen else f"{name} has no activation_func"
        msg = f"{given}.\nAllowed are {', '.join(_ACTIVATIONS)}: give one of them."
        raise MigrateError(msg)


_OWN = {
    *("attention_config", "checkpoint_factor", "gpt_j_residual", "lr_decay_style", "max_position_embeddings"),
    *("model_parallel_size", "no_weight_tying", "pipe_parallel_size", "pos_emb", "rotary_pct", "tokenizer_type"),
    *("scaled_upper_triang_masked_softmax_fusion", "train_iters", "train_micro_batch_size_per_gpu", "vocab_file"),
}
"""Names at the top of a file of GPT-NeoX; elsewhere they are in sections, or called otherwise."""

_DATA = {"data_path", "train_data_paths", "merge_file", "save", "load", "tensorboard_dir", "log_dir", "hostfile"}
"""Names of the files beside it, such as configs/local_setup.yml."""

_NOT_ITS = {"model", "train", "language_model", "model_parallel"}
"""Sections of a recipe, and of Megatron-LM's --yaml-cfg."""


def is_neox_yaml(data: Mapping[Any, Any]) -> bool:
    """Return whether the content of a YAML file is GPT-NeoX's, as against a recipe or Megatron-LM's --yaml-cfg."""
    names = {str(key).replace("-", "_") for key in data}
    if any(isinstance(data.get(section), dict) for section in _NOT_ITS):
        return False
    return bool(names & _OWN) or len(names & _DATA) > 1 or any("-" in str(key) for key in data if names & _DATA)


def read_neox(paths: Sequence[Path]) -> MigrateSource:
    """Read the files of one training."""
    settings: dict[str, Setting] = {}
    for path in paths:
        content = read_text(str(path))
        if content.is_large:
            msg = f"{path}: this is too large for a file of settings.\nGive GPT-NeoX's YAML files."
            raise MigrateError(msg)
        block = read_block(content.text, str(path))
        for key, value in block.items():
            name, place = key.replace("-", "_"), block.places[key]
            if name in settings:
                earlier = settings[name]
                both = key if key == earlier.written else f"{key} (written {earlier.written} there)"
                msg = (
                    f"{place}: {both} is given in {earlier.place} too.\n"
                    "A name has one value, and a-b and a_b are one name. Remove one of them."
                )
                raise MigrateError(msg)
            settings[name] = Setting(name, value, key, place)
    name = " ".join(str(path) for path in paths)
    return MigrateSource(name, "neox", program="train.py", settings=settings, launch=launch_of(settings))


def launch_of(settings: Mapping[str, Setting]) -> Launch | None:
    """Return the launch that settings state; None if they state none."""
    # Devices of a node alone are not counted as processes: the number of nodes is then that of a list of hosts.
    counts = {name: _count(settings, name) for name in ("global_num_gpus", "num_gpus", "num_nodes")}
    hostfile = settings["hostfile"].value if "hostfile" in settings else None
    hosts = hostfile if isinstance(hostfile, str) else ""
    stated = [*(name for name, count in counts.items() if count), *["hostfile"] * bool(hosts)]
    place = next((settings[name].place for name in stated if settings[name].place is not None), None)
    if place is None:
        return None
    nproc, nnodes = _processes(*counts.values())
    return Launch(place, nproc, nnodes, hosts)


def _processes(every: int | None, each: int | None, nodes: int | None) -> tuple[int | None, int | None]:
    """Return the processes of a node, and the nodes, where two of the three counts tell both."""
    if each and nodes:
        return each, nodes
    if every and nodes and every % nodes == 0:
        return every // nodes, nodes
    if every and each and every % each == 0:
        return each, every // each
    return None, nodes


def _count(settings: Mapping[str, Setting], name: str) -> int | None:
    """Return a count; GPT-NeoX's -1 is none."""
    value = settings[name].value if name in settings else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def neox_command(words: Sequence[Word]) -> list[str]:
    """Return the files of settings that a command names, relative to the directory that it runs in."""
    given = _parse(words)
    names = (name if name.endswith((".yml", ".json")) else f"{name}.yml" for name in given.conf_file)
    return [posixpath.join(given.conf_dir or "", name) for name in names]


def neox_options(words: Sequence[Word]) -> dict[str, Setting]:
    """Return the settings that the command itself gives, which win over those of the files: "hostfile"."""
    place = words[0].place if words else None
    return {
        name: Setting(name, value, f"--{name}", place)
        for name, value in vars(_parse(words)).items()
        if value is not None and name not in {"user_script", "conf_dir", "conf_file"}
    }


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise MigrateError(message)


def _parse(words: Sequence[Word]) -> argparse.Namespace:
    unknown = next((asked for word in words for asked in word.asked), None)
    if unknown is not None:
        msg = f"{unknown.place}: {unknown.name} is not known ({unknown.why}).\nGive --define {unknown.name}=VALUE."
        raise MigrateError(msg)
    texts = [word.text for word in words]
    if texts and posixpath.basename(texts[0]) == "deepy.py":
        texts = texts[1:]
    try:
        return _parser().parse_args(texts)
    except MigrateError as error:
        place = f"{words[0].place}: " if words else ""
        msg = (
            f"{place}cannot read this command of GPT-NeoX: {error}.\nIts form is: deepy.py train.py -d DIR FILE.yml ..."
        )
        raise MigrateError(msg) from error


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(allow_abbrev=False, add_help=False)
    parser.add_argument("user_script")
    parser.add_argument("--conf_dir", "-d")
    parser.add_argument("conf_file", nargs="+")
    for name in ("wandb_group", "wandb_run_name", "wandb_team", "eval_results_prefix"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--eval_tasks", nargs="+")
    parser.add_argument("--iteration", type=int)
    parser.add_argument("-H", "--hostfile")
    parser.add_argument("-i", "--sample_input_file")
    parser.add_argument("-o", "--sample_output_file")
    parser.add_argument("--autotuning", dest="autotuning_run", choices=("tune", "run"))
    return parser
