"""The command of a script that starts the training, and those that build token files."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import SourceLine, Word
from pretrain.tools.migrate.sources.command_layers import peel
from pretrain.tools.migrate.sources.files import Launch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pretrain.tools.migrate.sources.command_layers import UnwrappedCommand

_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_READ = "Supported are trainings of GPT: pretrain_gpt.py and pretrain_gpt2.py, and GPT-NeoX's deepy.py train.py."


@dataclass(slots=True)
class ScriptCommands:
    """Commands of a script that matter here."""

    trainings: list[UnwrappedCommand] = field(default_factory=list)  # commands of trainings that can be read
    preprocessing: list[tuple[Word, ...]] = field(default_factory=list)  # arguments of each preprocess_data.py
    others: list[str] = field(default_factory=list)  # phrases about other Python programs, with their places
    unknown: list[Word] = field(default_factory=list)  # commands whose program is not known
    seen: list[str] = field(default_factory=list)  # names of all programs that are started


def sort_commands(commands: Iterable[Sequence[Word]], batch: Mapping[str, Word]) -> ScriptCommands:
    """Sort commands by the programs that they start; the options of the script's job are defaults of srun's."""
    found = ScriptCommands()
    for words in commands:
        peeled = peel(words, batch)
        if peeled is not None:
            _sort(found, peeled)
    return found


def _sort(found: ScriptCommands, peeled: UnwrappedCommand) -> None:
    program, place = peeled.words[0], peeled.words[0].place
    if not peeled.program.endswith(".py"):
        if program.asked:
            found.unknown.append(program)
        is_shell = peeled.program.rpartition("/")[2] in {"bash", "sh", "sbatch"}
        scripts = [word.text for word in peeled.words[1:] if word.text.endswith(_SCRIPTS)] if is_shell else []
        found.seen.append(scripts[0] if scripts else peeled.program)
        return
    arguments = [word.text for word in peeled.words[1:]]
    role = role_of(peeled.program, arguments)
    if role == "preprocessing":
        found.preprocessing.append(peeled.words[1:])
    elif role == "other":
        found.others.append(f"{place}: {reason_against(peeled.program, arguments)}")
    else:
        found.trainings.append(peeled)


def training_of(name: str, found: ScriptCommands) -> UnwrappedCommand | None:
    """Return the one training of a script; None if the script only builds token files."""
    if not found.trainings:
        if not found.preprocessing:
            raise MigrateError(_no_training(name, found))
        return None
    first, *others = found.trainings
    different = [other for other in others if _arguments(other) != _arguments(first)]
    if different:
        lines = ", ".join(str(training.words[0].place) for training in (first, *different))
        msg = (
            f"{name} starts several trainings with different arguments: {lines}.\nGive a copy that starts one of "
            "them; if a variable of the script chooses, give its value: --define NAME=VALUE."
        )
        raise MigrateError(msg)
    return replace(first, launch=_common_launch([training.launch for training in found.trainings]))


def _arguments(peeled: UnwrappedCommand) -> list[tuple[str, list[str]]]:
    words = (replace(peeled.words[0], text=peeled.program), *peeled.words[1:])
    return [(word.text, [asked.name for asked in word.asked]) for word in words]


def _common_launch(launches: Sequence[Launch | None]) -> Launch | None:
    """Return the launch with what all of them say: the same training may be started in several ways."""
    known = [launch for launch in launches if launch]
    if len(known) < len(launches):
        return None
    return Launch(
        known[0].place,
        _common({launch.nproc for launch in known}),
        _common({launch.nnodes for launch in known}),
        known[0].hostfile if len({launch.hostfile for launch in known}) == 1 else "",
    )


def _common(counts: set[int | None]) -> int | None:
    return counts.pop() if len(counts) == 1 else None


def _no_training(name: str, found: ScriptCommands) -> str:
    if found.unknown:
        word = found.unknown[0]
        names = ", ".join(f"--define {asked.name}=..." for asked in word.asked)
        unknown = f"{word.place}: the name of the program that starts here is not known.\nGive {names}"
        return "\n".join((*found.others[:2], unknown))
    if found.others:
        return "\n".join((*found.others[:3], _READ))
    scripts = [program for program in found.seen if program.endswith(_SCRIPTS)]
    if scripts:
        return f"{name} starts no training, but the script {scripts[0]}.\nGive that one if it starts the training."
    seen = ", ".join(sorted(set(found.seen))[:5])
    return f"{name} starts no training; it starts {seen or 'no program'}.\n{_READ}"


Role = Literal["gpt", "neox", "preprocessing", "other"]

_GPT = frozenset(("pretrain_gpt.py", "pretrain_gpt2.py", "pretrain_gpt_core.py"))
_OTHER = {
    "bert": "trains BERT",
    "t5": "trains T5",
    "albert": "trains ALBERT",
    "ict": "trains a retriever",
    "realm": "trains a retriever",
    "retro": "trains Retro",
    "mamba": "trains Mamba and hybrid models",
    "hybrid": "trains Mamba and hybrid models",
    "vlm": "trains vision-language models",
    "mimo": "trains multimodal models",
    "multimodal": "trains multimodal models",
    "vit": "trains a vision transformer",
    "vision": "trains vision models",
    "prefix": "trains a prefix language model",
    "finetune": "fine-tunes a model",
    "posttrain": "fine-tunes a model",
    "rl": "trains by reinforcement learning",
    "evaluate": "evaluates",
    "eval": "evaluates",
    "generate": "generates text",
    "inference": "generates text",
}
"""By a word of the file's name: pretrain_bert.py, pretrain_vision_dino.py."""


def role_of(program: str, arguments: Sequence[str]) -> Role:
    """Return what a program is here: train.py is GPT-NeoX's only with a YAML file, and deepy.py starts others too."""
    name = PurePosixPath(program).name
    if name == "deepy.py":
        started = next((PurePosixPath(word).name for word in arguments if word.endswith(".py")), "")
        return "neox" if started in {"train.py", "pretrain_gpt2.py"} else "other"
    if name == "train.py" or name in _GPT:
        has_yaml = any(word.endswith((".yml", ".yaml")) for word in arguments)
        has_flags = any(word.startswith("--") and word != "--conf_dir" for word in arguments)  # of Megatron-LM
        return "neox" if has_yaml and not has_flags else ("gpt" if name in _GPT else "other")
    return "preprocessing" if name == "preprocess_data.py" else "other"


def reason_against(program: str, arguments: Sequence[str]) -> str:
    """Return a phrase that says why a program is not read: "pretrain_bert.py trains BERT"."""
    path = PurePosixPath(program)
    if path.name == "deepy.py":
        path = PurePosixPath(next((word for word in arguments if word.endswith(".py")), program))
    does = next((_OTHER[word] for word in path.stem.split("_") if word in _OTHER), "")
    if does:
        return f"{path.name} {does}"
    if "tasks" in path.parts:
        return f"{program} runs a downstream task"
    if "server" in path.stem or "generation" in path.stem:
        return f"{path.name} generates text"
    if "tools" in path.parts:
        return f"{program} is a tool"
    return f"{program} is not a program that migrate knows"


_LINE = re.compile(r"#SBATCH\s+(.*)")
_SHORT = {"N": "nodes", "n": "ntasks"}
_VARIABLES = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks_per_node": ("SLURM_NTASKS_PER_NODE",),
    "gpus_per_node": ("SLURM_GPUS_PER_NODE",),
}
"""Variables that Slurm sets for a job by its options (sbatch's output environment variables)."""


def batch_options(name: str, text: str) -> dict[str, Word]:
    """Return the options of "#SBATCH" lines that count nodes and tasks, by their long names with underscores."""
    options: dict[str, Word] = {}
    for number, line in enumerate(text.split("\n"), 1):
        found = _LINE.match(line.strip())
        if found:
            place = SourceLine(name, number)
            options |= {key: Word(value, place) for key, value in _options(found[1]) if key in _VARIABLES}
    return options


def _options(text: str) -> list[tuple[str, str]]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:  # a quote in a comment
        return []
    options = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        written, equals, value = word.partition("=")
        if word.startswith("--"):
            options.append((written[2:].replace("-", "_"), value if equals else following))
        elif word.startswith("-") and word[1:2] in _SHORT:
            options.append((_SHORT[word[1]], word[2:] or following))
    return options


def batch_variables(options: Mapping[str, Word], text: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables that Slurm sets for these options, if the script uses them, and a line for the user each."""
    defined: dict[str, str] = {}
    notices = []
    for option, names in _VARIABLES.items():
        word = options.get(option)
        if word is None or not word.text.isdecimal():
            continue
        for name in names:
            if re.search(rf"\${{?{name}\b", text):
                defined[name] = word.text
                notices.append(f"{word.place}: {name} is taken as {word.text}, which --{option.replace('_', '-')} says")
    return defined, notices
