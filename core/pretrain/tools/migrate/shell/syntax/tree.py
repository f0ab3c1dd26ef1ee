"""Syntax trees of shell scripts.

`written` is what the script writes, for messages: a whole word or assignment, and of a statement its condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Asked, Place
    from pretrain.tools.migrate.shell.spans import Text


@dataclass(frozen=True, slots=True)
class Literal:
    """Characters that stand for themselves; `quoted` ones are no pattern and are not split."""

    text: Text
    quoted: bool


@dataclass(frozen=True, slots=True)
class Quotes:
    """Content of double quotes."""

    parts: tuple[Part, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that is not known, or not understood: a hole in evaluated text, a process substitution."""

    asked: Asked


@dataclass(frozen=True, slots=True)
class Parameter:
    """An expansion $name or ${name...}.

    Attributes:
        name: a variable's, or of a special one: "@", "1", "?".
        place: of its dollar.
        written: as the script writes it, for messages.
        index: of an array: "@", "*", or an arithmetic expression.
        operator: "", "#" before the name as "length", ":-", "%%", "/", ":" and so on.
        arguments: words after the operator.
    """

    name: str
    place: Place
    written: str
    index: str | Parts | None = None
    operator: str = ""
    arguments: tuple[Parts, ...] = ()


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An expansion $((...)), whose inside is expanded as in double quotes first."""

    inside: Parts
    place: Place
    written: str


@dataclass(frozen=True, slots=True)
class Substitution:
    """An expansion $(...) or `...`."""

    body: Statements
    place: Place
    written: str


Part: TypeAlias = "Literal | Quotes | Unknown | Parameter | Arithmetic | Substitution"
Parts: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class WordNode:
    """A word as the script writes it."""

    parts: Parts
    place: Place
    written: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """NAME=value, NAME+=value, NAME[index]=value or NAME=(values)."""

    name: str
    place: Place
    written: str
    value: WordNode | tuple[Element, ...]
    index: Parts | None = None
    appends: bool = False


@dataclass(frozen=True, slots=True)
class Element:
    """A value within NAME=(...), with its [index]= if it has one."""

    value: WordNode
    index: Parts | None = None


@dataclass(slots=True)
class Redirect:
    """A redirection: `operator` without its descriptor, and its target, or a here-document."""

    operator: str
    descriptor: str
    target: WordNode
    place: Place


@dataclass(frozen=True, slots=True)
class Simple:
    """Assignments, then words: a program, a builtin, or a function."""

    assignments: tuple[Assignment, ...]
    words: tuple[WordNode | Assignment, ...]
    place: Place
    timed: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """{ ...; } or, as a shell of its own, ( ... )."""

    body: Statements
    is_subshell: bool
    place: Place


@dataclass(frozen=True, slots=True)
class If:
    """Conditions with what follows them; the last is the else branch if it has no condition."""

    branches: tuple[tuple[Statements | None, Statements], ...]
    place: Place
    written: str = ""


@dataclass(frozen=True, slots=True)
class For:
    """for NAME in words; without words, over the arguments."""

    name: str
    words: tuple[WordNode, ...] | None
    body: Statements
    place: Place
    written: str = ""


@dataclass(frozen=True, slots=True)
class CountedFor:
    """for ((start; condition; step))."""

    start: Arithmetic | None
    condition: Arithmetic | None
    step: Arithmetic | None
    body: Statements
    place: Place
    written: str = ""


@dataclass(frozen=True, slots=True)
class While:
    """A loop with a condition: while, or until."""

    condition: Statements
    body: Statements
    until: bool
    place: Place
    written: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """Patterns of a case, their statements, and the ;; or ;& or ;;& that ends them."""

    patterns: tuple[WordNode, ...]
    body: Statements
    ending: str


@dataclass(frozen=True, slots=True)
class Case:
    """case word in ... esac."""

    word: WordNode
    choices: tuple[Choice, ...]
    place: Place
    written: str = ""


@dataclass(frozen=True, slots=True)
class Function:
    """A definition of a function."""

    name: str
    body: Node
    place: Place


@dataclass(frozen=True, slots=True)
class Calculation:
    """A statement ((...))."""

    value: Arithmetic
    place: Place


@dataclass(frozen=True, slots=True)
class Test:
    """[[ ... ]]: an operator with words, or "!", "&&", "||" with tests, or "" for a word alone."""

    operator: str
    operands: tuple[WordNode | Test, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Redirected:
    """A statement with redirections."""

    body: Node
    redirects: tuple[Redirect, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Statements that pass their output on."""

    elements: tuple[Node, ...]
    negated: bool
    place: Place


@dataclass(frozen=True, slots=True)
class Chain:
    """Pipelines with && and || before all but the first."""

    first: Node
    others: tuple[tuple[str, Node], ...]
    place: Place
    written: str = ""


@dataclass(frozen=True, slots=True)
class Background:
    """A statement with & after it."""

    body: Node
    place: Place


Node: TypeAlias = (
    "Simple | Group | If | For | CountedFor | While | Case | Function | Calculation | Test | Redirected | Pipeline"
    " | Chain | Background"
)
Statements: TypeAlias = tuple[Node, ...]
