"""Simple commands: assignments, functions, builtins, and the programs that a script starts."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Word
from pretrain.tools.migrate.shell import builtins, written_files
from pretrain.tools.migrate.shell.flow import EXIT, NEXT, RETURN, end, joined, leads_on
from pretrain.tools.migrate.shell.loops import Loops
from pretrain.tools.migrate.shell.script import Command
from pretrain.tools.migrate.shell.spans import Span, Text, Written, known
from pretrain.tools.migrate.shell.syntax.grammar import parse
from pretrain.tools.migrate.shell.syntax.simple import DECLARATIONS
from pretrain.tools.migrate.shell.syntax.tree import Assignment, Simple, WordNode
from pretrain.tools.migrate.shell.values.assigning import assign
from pretrain.tools.migrate.shell.values.expansion import arguments_of
from pretrain.tools.migrate.shell.values.state import Cell, State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pretrain.tools.migrate.setting import Place
    from pretrain.tools.migrate.shell.flow import Flow
    from pretrain.tools.migrate.shell.syntax.tree import Function, Redirect, Redirected, Statements
    from pretrain.tools.migrate.shell.values.expansion import Field
    from pretrain.tools.migrate.shell.values.state import Budget

_DEEPEST = 25
_LARGEST = 1_000_000
_STEPS_TO_READ = 50
"""Of the budget, for a text out of variables: reading it starts a process."""
_HARMLESS = (".bashrc", ".bash_profile", ".profile", "/etc/profile", "activate", "conda.sh", "set_env.sh", "setvars.sh")
"""Ends of the names of files that prepare an environment and set no settings of a training."""

_SHELLS = {"bash", "sh"}
_PASS_ON = {"srun", "nohup", "exec", "time", "timeout", "nice", "numactl", "taskset", "stdbuf", "setsid"}
"""Programs that start another with the environment that they have."""


class Commands(Loops):
    """Follows simple commands."""

    def __init__(self, path: Path, budget: Budget) -> None:
        """Prepare it; files are sourced relative to the script's folder."""
        super().__init__(budget)
        self.path = path
        self.lent: list[set[str]] = []
        """Variables that stand before the calls of the functions around."""
        self.written_at: dict[str, int] = {}
        self._environment_of_call: Mapping[str, Text] = {}
        self._read: dict[tuple[Span, ...], Statements] = {}
        self._files: dict[Path, Statements] = {}

    def simple(self, node: Simple, state: State) -> Flow:
        """Follow a simple command."""
        self.last_substitution = 0
        expansion = self.expansion(state)
        assigned = [word for word in node.words if isinstance(word, Assignment)]
        fields = expansion.fields(word for word in node.words if isinstance(word, WordNode))
        if not fields:
            for assignment in node.assignments:
                assign(assignment, state, expansion)
            state.status = self.last_substitution
            return {NEXT: state}
        environment = self._environment(node, state) if node.assignments else {}
        return self.call(fields, state, environment, assigned, is_timed=node.timed)

    def _environment(self, node: Simple, state: State) -> dict[str, Text]:
        """Return what NAME=value before a command gives it; ${NAME:=value} in it still changes the state."""
        state.frames.append({})
        expansion, found = self.expansion(state), {}
        for assignment in node.assignments:
            if isinstance(assignment.value, WordNode) and not assignment.index and not assignment.appends:
                text = expansion.single(assignment.value.parts, is_assignment=True).named(assignment.name)
                found[assignment.name] = text
                state.put(assignment.name, Cell({0: text}, is_exported=True), local=True)
            else:
                why = assignment.written
                found[assignment.name] = Text((Span("", assignment.place, builtins.asked(assignment, why)),))
        state.frames.pop()
        return found

    def call(
        self, fields: Sequence[Field], state: State, environment: Mapping[str, Text],
        assigned: Sequence[Assignment] = (), *, is_timed: bool = False, functions: bool = True,
    ) -> Flow:  # fmt: skip
        """Start what the first word names: a function, a builtin, or a program."""
        name = fields[0].text.text if not fields[0].asked else ""
        if functions and name in state.functions:
            return self._function_called(name, fields, state, environment)
        builtin = builtins.BUILTINS.get(name)
        if builtin is None:
            return self._program(fields, state, environment, is_timed=is_timed)
        self._environment_of_call = environment
        if name in builtins.KEEP_ENVIRONMENT:
            for variable, text in environment.items():
                state.put(variable, Cell({0: text}))
        flow = builtin(self, state, fields, assigned)
        for variable in environment:
            if name in builtins.KEEP_ENVIRONMENT | DECLARATIONS and NEXT in flow:
                flow[NEXT].forget(variable, f"{variable}= before {name}")
        return flow

    def _function_called(
        self, name: str, fields: Sequence[Field], state: State, environment: Mapping[str, Text]
    ) -> Flow:
        function = state.functions[name]
        if function is None:
            state.forget_all(f"{name} may be a function")
            return self._program(fields, state, environment)
        before, frames = state.arguments, len(state.frames)
        self._deeper(function.place)
        own = {key: Cell({0: text}, is_exported=True) for key, text in environment.items()}
        state.enter(arguments_of(fields[1:]), own)
        self.lent.append(set(environment))
        flow = self._of_function(function, state)
        self.lent.pop()
        self.budget.depth -= 1
        for inner in flow.values():
            inner.leave(frames, before)
        return flow

    def _of_function(self, function: Function, state: State) -> Flow:
        flow = self.step(function.body, state)
        exits = {EXIT: flow.pop(EXIT)} if EXIT in flow else {}
        if not flow:
            return exits
        return joined(exits, leads_on(self.ended(flow, function.place)))

    def _deeper(self, place: Place) -> None:
        self.budget.depth += 1
        if self.budget.depth > _DEEPEST:
            msg = f"{place}: functions and files call each other more than {_DEEPEST} levels deep."
            msg += "\nA launch script needs a few.\nName a script that only starts the training."
            raise MigrateError(msg)

    def start(self, fields: Sequence[Field], state: State) -> None:
        """Start a program with what stands before the builtin that names it."""
        self._program(fields, state, self._environment_of_call)

    def _program(
        self, fields: Sequence[Field], state: State, environment: Mapping[str, Text], *, is_timed: bool = False
    ) -> Flow:
        words = [field.word for field in fields]
        if is_timed:
            words.insert(0, Word("time", fields[0].place))
        place = fields[0].place
        shown = {name: _word(text, place) for name, text in environment.items()}
        self.commands.append(Command(tuple(words), shown))
        written_files.changed(state, fields)
        is_output = fields[0].asked and fields[0].asked[0].name.startswith(("$(", "`"))  # the name of a program
        if fields[0].asked and len(fields) == 1 and not fields[0].text.text and not is_output:
            state.forget_all(f"{fields[0].asked[0].why} may be any command")
        if posixpath.basename(fields[0].text.text) == "tee":
            appends = any(word.text in {"-a", "--append"} for word in words)
            for field in fields[1:]:
                if not field.asked and not field.text.text.startswith("-"):
                    self.write(field.text.text, state.input, state, appends=appends)
        text = written_files.passed_on(posixpath.basename(fields[0].text.text), fields[1:], state)
        state.status = None
        self._command_string(fields, state, environment)
        emit(state, text)
        return {NEXT: state}

    def _command_string(self, fields: Sequence[Field], state: State, environment: Mapping[str, Text]) -> None:
        """Follow the string of `bash -c STRING`, which sees exported variables alone."""
        at = next((n for n, field in enumerate(fields) if posixpath.basename(field.text.text) in _SHELLS), None)
        if at is None:
            return
        position, is_string = at + 1, False
        while position < len(fields) and fields[position].text.text.startswith("-"):
            flag = fields[position].text.text
            is_string = is_string or (not flag.startswith("--") and "c" in flag)
            position += 1
        if not is_string or position >= len(fields):
            return
        first = posixpath.basename(fields[0].text.text)
        cells = _exported(state, environment) if at == 0 or first in _PASS_ON else {}
        child = State(state.defined, state.budget, frames=[cells], files=state.files)
        child.arguments = arguments_of(fields[position + 2 :])
        self._deeper(fields[position].place)
        flow = self.evaluated(fields[position].text, fields[position].place, child)
        self.budget.depth -= 1
        state.files = self.ended(flow, fields[position].place).files

    def evaluated(self, text: Text, place: Place, state: State) -> Flow:
        """Follow a text as statements; one that a loop evaluates again is read once."""
        self.budget.spend(place, characters=len(text.text))
        if text.spans not in self._read:
            self.budget.spend(place, steps=_STEPS_TO_READ)
            self._read[text.spans] = parse(Written(text.spans, place))
        return self.run(self._read[text.spans], state)

    def sourced(self, fields: Sequence[Field], state: State) -> Flow:
        """Follow another file in this shell."""
        name, place = fields[0].text.text, fields[0].place
        path = self.path.parent / name
        if fields[0].asked or not path.is_file():
            self.notice(f"{place}: the file {name or fields[0].asked[0].why} is not read: it is not there.")
            if not name.endswith(_HARMLESS):
                state.forget_all(f"{place} reads a file that may set it")
            state.status = None
            return {NEXT: state}
        self._deeper(place)
        before = state.arguments
        if len(fields) > 1:
            state.arguments = arguments_of(fields[1:])
        if path not in self._files:
            self._files[path] = statements_of(path)
        flow = self.run(self._files[path], state)
        self.budget.depth -= 1
        ended = end(flow, *(way for way in (NEXT, RETURN) if way in flow)) if flow.keys() & {NEXT, RETURN} else None
        if ended is not None and len(fields) > 1:
            ended.arguments = before
        return joined(flow, leads_on(ended))

    def notice(self, line: str) -> None:
        """Keep a line for the user, once."""
        if line not in self.notices:
            self.notices.append(line)

    def redirected(self, node: Redirected, state: State) -> Flow:
        """Follow a statement whose output goes to a file, or whose input is a here-document."""
        output, piped, expansion = state.output, state.input, self.expansion(state)
        targets = [(redirect, expansion.single(redirect.target.parts)) for redirect in node.redirects]
        reads_file = False
        for redirect, text in targets:
            if redirect.operator.startswith("<"):
                is_text = redirect.operator in {"<<", "<<-", "<<<"}
                state.input = text + known("\n" * (redirect.operator == "<<<"), redirect.place) if is_text else None
                reads_file = reads_file or not is_text
            if redirect.descriptor.startswith("{"):
                state.forget(redirect.descriptor[1:-1], "it is a number of a file")
        outputs = [(redirect, text) for redirect, text in targets if _takes_output(redirect)]
        state.output = Text() if outputs else state.output
        flow = self.step(node.body, state)
        for after in flow.values():
            after.input = piped
            if reads_file and isinstance(node.body, Simple) and not node.body.words:
                after.output = None
            if outputs:
                self._write(targets, outputs[-1], after)
                after.output = output
        return flow

    def _write(self, targets: list[tuple[Redirect, Text]], last: tuple[Redirect, Text], state: State) -> None:
        for redirect, path in targets:
            is_last = redirect is last[0]
            if redirect.operator.startswith("<") or (redirect.operator == ">&" and path.text.isdecimal()):
                continue
            if is_last and not path.is_known:
                self.notice(f"{redirect.place}: a file is written whose name is not known: {redirect.target.written}.")
            elif path.is_known and not (redirect.operator == ">&" and path.text in {"-", ""}):
                text = state.output if is_last and not redirect.operator.startswith("&") else None
                self.write(path.text, text, state, appends=">>" in redirect.operator)

    def write(self, path: str, text: Text | None, state: State, *, appends: bool) -> None:
        """Note what a statement writes to a file."""
        between = self.commands[self.written_at.get(path, len(self.commands)) :]
        written_files.written(state, path, text, appends=appends, between=between)
        self.written_at[path] = len(self.commands)


def emit(state: State, text: Text | None) -> None:
    """Note what a command prints; nothing is known any more of an output of which a part is unknown."""
    state.output = state.output + text if state.output is not None and text is not None else None


def statements_of(path: Path) -> Statements:
    """Return the statements of a file.

    Raises:
        MigrateError: it cannot be read, or is no script of bash.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}.\nA script is a file.\nName a file that you may read."
        raise MigrateError(msg) from error
    if len(content) > _LARGEST or b"\0" in content:
        msg = f"{path} is no shell script: it is binary, or has more than {_LARGEST} bytes.\nA script is a text."
        msg += "\nName the script that starts the training."
        raise MigrateError(msg)
    text = content.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    first = text.split("\n", 1)[0]
    shells = ("zsh", "csh", "tcsh", "fish", "ksh", "python", "perl")
    if first.startswith("#!") and any(part.endswith(shells) for part in first.split()):
        msg = f"{path}:1: {first!r} is not the first line of a script of bash.\nScripts of bash and sh are read."
        msg += "\nName such a script."
        raise MigrateError(msg)
    return parse(Written.of_file(text, str(path)))


def _exported(state: State, environment: Mapping[str, Text]) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for frame in state.frames:
        for name, cell in frame.items():
            cells.pop(name, None)
            if cell.is_exported and not cell.is_array:
                cells[name] = cell
    return {**cells, **{name: Cell({0: text}, is_exported=True) for name, text in environment.items()}}


def _takes_output(redirect: Redirect) -> bool:
    return not redirect.operator.startswith("<") and redirect.descriptor in {"", "1"}


def _word(text: Text, place: Place) -> Word:
    """Return a value as others see it."""
    return Word(text.text, text.spans[0].place if text.spans else place, text.asked)
