"""Sources of settings, as they are after reading."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe.deepspeed.json_file import JsonFile
    from pretrain.tools.migrate.setting import Asked, Place, Setting, Word

Kind = Literal["script", "arguments", "log", "neox", "deepspeed", "megatron_yaml"]


@dataclass(frozen=True, slots=True)
class Launch:
    """Number of processes that a source starts, and where.

    Attributes:
        place: of the launcher.
        nproc: processes of a node; None if the source does not say.
        nnodes: nodes; None if the source does not say.
        hostfile: a file of hosts; empty for none.
    """

    place: Place
    nproc: int | None = None
    nnodes: int | None = None
    hostfile: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """One source, read but not yet understood.

    Attributes:
        name: as the user named it; several GPT-NeoX files are one source.
        kind: of which it was recognized.
        program: file name of the Python program that it starts, "pretrain_gpt.py"; empty if it starts none.
        words: arguments of that program.
        settings: what a log, a YAML file or GPT-NeoX's files state, by name.
        deepspeed: keys of a DeepSpeed file.
        files: texts that a script would write, by path.
        preprocessing: arguments of each preprocess_data.py that it starts.
        launch: its launcher; None if it has none.
        notices: lines for the user.
        unknown_files: values that are not known of other files that it would write, by path.
        read_names: names of variables, and of a script's arguments, that its text reads.
    """

    name: str
    kind: Kind
    program: str = ""
    words: tuple[Word, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    deepspeed: JsonFile | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    preprocessing: tuple[tuple[Word, ...], ...] = ()
    launch: Launch | None = None
    notices: tuple[str, ...] = ()
    unknown_files: Mapping[str, tuple[Asked, ...]] = field(default_factory=dict)
    read_names: frozenset[str] = frozenset()
