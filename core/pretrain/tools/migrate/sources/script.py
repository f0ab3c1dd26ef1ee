"""Shell scripts, and bare arguments, as sources."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.cell.reader import capture, read_script
from pretrain.tools.migrate.setting import RuntimeValue, SourceLine, Word
from pretrain.tools.migrate.sources.files import MigrateSource, find_file, read_text
from pretrain.tools.migrate.sources.training import batch_options, batch_variables, role_of, sort_commands, training_of
from pretrain.tools.migrate.sources.yaml_files import (
    launch_of,
    neox_command,
    neox_options,
    read_megatron_yaml,
    read_neox,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pretrain.tools.migrate.cell.reader import Script
    from pretrain.tools.migrate.sources.command_layers import UnwrappedCommand
    from pretrain.tools.migrate.sources.training import ScriptCommands

_YAML_FLAG = "--yaml-cfg"


def read_shell(name: str, text: str, defined: Mapping[str, str]) -> MigrateSource:
    """Read a shell script that starts a training, or builds token files."""
    batch = batch_options(name, text)
    variables, notices = batch_variables({**batch}, text)
    unset = {key: value for key, value in variables.items() if key not in defined}
    script = read_script(name, text, defined, unset)
    read_names = names_read(name, text, defined)
    source = MigrateSource(
        name, "script", files=script.files, unknown_files=script.unknown_files, read_names=read_names
    )
    commands = sort_commands(script.commands, batch)
    notices = [*script.notices, *_cut_off(script), *(line for line in notices if line.split()[1] in unset)]
    return _with_commands(source, commands, notices, defined)


def read_capture(command: Sequence[str]) -> MigrateSource:
    """Read what a command starts when it is run for real, with stubs for the programs of a training."""
    script = capture(command)
    source = MigrateSource(shlex.join(command), "script", files=script.files, unknown_files=script.unknown_files)
    return _with_commands(source, sort_commands(script.commands, {}), list(script.notices), {})


def _cut_off(script: Script) -> list[str]:
    """Return a notice on each flag that begins a command, as after a line that lacks its backslash."""
    first = (command[0] for command in script.commands if command)
    return [
        f"{word.place}: {word.text} is not passed on: the line before has no backslash, so bash takes it for a command"
        for word in first
        if word.text.startswith("--")
    ]


def read_arguments(text: str, defined: Mapping[str, str] | None = None) -> MigrateSource:
    """Read the text of `--args`: arguments, or a whole command."""
    defined = defined or {}
    words = split_words("--args", text, defined, lines="\n" in text.strip())
    if not words:
        msg = "--args is empty.\nGive the training's arguments: --args '--num-layers 24 ...'"
        raise MigrateError(msg)
    source = MigrateSource("--args", "arguments", read_names=names_read("--args", text, defined))
    if words[0].text.startswith("-"):
        return replace(source, words=words)
    return _with_commands(source, sort_commands([words], {}), [], defined)


def _with_commands(
    source: MigrateSource, commands: ScriptCommands, notices: list[str], defined: Mapping[str, str]
) -> MigrateSource:
    training = training_of(source.name, commands)
    source = replace(source, preprocessing=tuple(commands.preprocessing))
    unread = (f"{phrase}; it is ignored" for phrase in commands.others)
    if training is None:
        return replace(source, notices=(*notices, *unread))
    source = replace(source, launch=training.launch, notices=(*notices, *training.notices, *unread))
    arguments = [word.text for word in training.words[1:]]
    if role_of(training.program, arguments) == "neox":
        return _neox(source, training)
    program = PurePosixPath(training.program).name
    return _with_yaml(replace(source, program=program, words=training.words[1:]), defined)


def _neox(source: MigrateSource, training: UnwrappedCommand) -> MigrateSource:
    place = training.words[0].place
    paths = [find_file(source.name, name, str(place)) for name in neox_command(training.words)]
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:
        msg = (
            f"{place}: {missing} does not exist.\n"
            "Its path is relative to the working directory, or to the script's folder."
        )
        raise MigrateError(msg)
    read = read_neox(paths)
    settings = {**read.settings, **neox_options(training.words)}
    return replace(
        source,
        kind="neox",
        program=read.program,
        settings=settings,
        launch=source.launch or launch_of(settings),
        notices=source.notices + read.notices,
    )


def _with_yaml(source: MigrateSource, defined: Mapping[str, str]) -> MigrateSource:
    """Return the source with the settings of the file that --yaml-cfg names; the program then reads nothing else."""
    named = _value_of(source.words, _YAML_FLAG)
    if named is None:
        return source
    if named.asked:
        asked = named.asked[0]
        msg = f"{named.place}: {_YAML_FLAG}: {asked.name} is not known.\nGive --define {asked.name}=..."
        raise MigrateError(msg)
    path = find_file(source.name, named.text, f"{named.place}: {_YAML_FLAG}")
    text = read_text(str(path)).text
    read = read_megatron_yaml(str(path), text, defined)
    ignored = f"{named.place}: {_YAML_FLAG}: only {path} is read; Megatron-LM ignores all other flags with it"
    read_names = source.read_names | names_read(str(path), text, defined)
    notices = (*source.notices, ignored)
    return replace(source, kind=read.kind, settings=read.settings, words=(), notices=notices, read_names=read_names)


def _value_of(words: tuple[Word, ...], flag: str) -> Word | None:
    for word, following in zip(words, [*words[1:], None], strict=False):
        if word.text == flag:
            return following
        if word.text.startswith(f"{flag}="):
            return replace(word, text=word.text[len(flag) + 1 :])
    return None


_READ = re.compile(r"\$\{?[!#]?(\w+|@|\*|#)|\b([A-Za-z_]\w*)(?:\[[^]\n]*\])?\+?=|(?:-v|printenv)[ \t]+(\w+)")
_ARITHMETIC = re.compile(r"\(\(.*?\)\)|-(?:eq|ne|gt|ge|lt|le)\b[^\n]*|\blet\b[^\n]*|\[\[[^\n]*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_ALL_ARGUMENTS = re.compile(r"\$\{?[@*#]|\bshift\b|\bgetopts\b")
_SOURCED = re.compile(r"(?:^|[;&|({]|\bthen\b|\bdo\b)[ \t]*(?:source|\.)[ \t]+(\S+)", re.MULTILINE)
_LARGEST = 1_000_000
_MOST = 50
"""Files that are followed."""


def names_read(name: str, text: str, defined: Mapping[str, str]) -> frozenset[str]:
    """Return the names of variables and of arguments in a text, and in the files that it sources."""
    # Names are searched, not followed: one too many does no harm, but one too few would refuse a definition that
    # counts. Where a sourced file is not found, all definitions count as read.
    texts, complete = _texts(name, text)
    found = frozenset(one for each in texts for one in _names(each, defined))
    return found if complete else found | defined.keys()


def _names(text: str, defined: Mapping[str, str]) -> Iterator[str]:
    for groups in _READ.findall(text):
        yield from filter(None, groups)
    for arithmetic in _ARITHMETIC.findall(text):
        yield from _WORD.findall(arithmetic)
    yield from (name for name in defined if name.startswith("<") and name in text)  # a placeholder
    yield from (name for name in defined if re.search(rf"(?:\$\(|[`|])\s*{re.escape(name)}\b", text))  # a program
    numbers = [name for name in defined if name.isdecimal()]
    if _ALL_ARGUMENTS.search(text):
        yield from ("@", *numbers)
    elif re.search(r"\$\{?\d", text):
        yield "@"


def _texts(name: str, text: str) -> tuple[list[str], bool]:
    """Return a text with those that it sources, and whether they were found."""
    texts, seen, complete = [text], set[Path](), True
    for each in texts:
        for word in _SOURCED.findall(each):
            path = _found(name, word.strip("\"';"))
            complete = complete and path is not None and len(texts) < _MOST
            if path is not None and path not in seen and len(texts) < _MOST:
                seen.add(path)
                texts.append(path.read_text(encoding="utf-8", errors="replace"))
    return texts, complete


def _found(name: str, written: str) -> Path | None:
    """Return a file that a script sources; of a path with variables the last part alone is known."""
    folder = Path(name).parent
    parts = [written] if "$" not in written else []
    last = PurePosixPath(written).name
    parts += [last] if last and "$" not in last else []
    for path in (place / part for part in parts for place in (Path(), folder)):
        if path.is_file() and path.stat().st_size <= _LARGEST:
            return path
    return None


_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_PIECES = r"""(?P<blank>[ \t\r\n]+)
    |(?P<joint>\\\r?\n)
    |(?P<late>\\[ \t]+(?:\r?\n|\Z))
    |(?P<single>'[^']*')
    |(?P<double>"(?:[^"\\]|\\.)*")
    |(?P<escape>\\.)
    |(?P<plain>[^ \t\r\n\\'"]+)"""
_INSIDE = re.compile(_PIECES, re.VERBOSE | re.DOTALL)
_PIECE = re.compile(r"(?P<comment>\#[^\n]*)|" + _PIECES, re.VERBOSE | re.DOTALL)
_ESCAPED = re.compile(r'\\([\\"$`]|\n)')
_OPERATORS = ";|&<>()`"


def split_words(name: str, text: str, defined: Mapping[str, str], *, lines: bool = True) -> tuple[Word, ...]:
    """Split arguments as a shell does; variables that are not defined are asked for."""
    words: list[Word] = []
    texts: list[str] = []
    asked: list[RuntimeValue] = []
    start = SourceLine(name)
    for kind, content, place in _pieces(name, text, lines=lines):
        if kind == "blank":
            words += _word(texts, start, asked)
            texts, asked = [], []
            continue
        start = start if texts else place
        value = _value(kind, content, place, defined, asked)
        texts += [value] if value or asked or kind != "plain" else []  # a shell drops an empty variable
    return (*words, *_word(texts, start, asked))


def _word(texts: list[str], place: SourceLine, asked: list[RuntimeValue]) -> list[Word]:
    return [Word("".join(texts), place, tuple(asked))] if texts else []


def _pieces(name: str, text: str, *, lines: bool) -> Iterator[tuple[str, str, SourceLine]]:
    """Yield kind, content and place of each piece; comments and escaped line ends are left out."""
    position, line, inside = 0, 1, False
    while position < len(text):
        place = SourceLine(name, line if lines else 0)
        piece = (_INSIDE if inside else _PIECE).match(text, position)
        if piece is None:
            msg = f"{place}: a quote or a backslash is not closed.\nComplete it."
            raise MigrateError(msg)
        if piece.lastgroup == "late":
            msg = f"{place}: blanks follow the backslash at the end of this line.\nRemove them: a shell stops here."
            raise MigrateError(msg)
        kind, content = str(piece.lastgroup), piece[0]
        position, line = piece.end(), line + content.count("\n")
        if kind not in {"comment", "joint"}:
            inside = kind != "blank"
            yield kind, content, place


def _value(kind: str, content: str, place: SourceLine, defined: Mapping[str, str], asked: list[RuntimeValue]) -> str:
    if kind == "single":
        return content[1:-1]
    if kind == "escape":
        return content[1:]
    if kind == "plain" and any(sign in content for sign in _OPERATORS):
        msg = f"{place}: '{content}' is not an argument.\nGive only arguments, or a whole script; quote such signs."
        raise MigrateError(msg)
    if kind == "plain":
        filled = _filled(content, place, defined, asked)
        if filled.split() not in ([], [filled]):
            msg = f"{place}: '{content}' becomes several words: '{filled}'.\nQuote it, or write the words."
            raise MigrateError(msg)
        return filled
    parts = re.split(r'(\\[\\"$`\n])', content[1:-1])
    return "".join(
        _ESCAPED.sub(lambda found: found[1].replace("\n", ""), part)
        if index % 2
        else _filled(part, place, defined, asked)
        for index, part in enumerate(parts)
    )


def _filled(text: str, place: SourceLine, defined: Mapping[str, str], asked: list[RuntimeValue]) -> str:
    """Return the text with its variables' values; one that is not known becomes empty, and is asked for."""
    if re.search(r"\$[({]|`", _VARIABLE.sub("", text)):
        msg = f"{place}: only a shell can compute '{text}'.\nWrite its value, or give the whole script."
        raise MigrateError(msg)

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in defined:
            asked.append(RuntimeValue(name, place, found[0]))
        return defined.get(name, "")

    return _VARIABLE.sub(value, text)
