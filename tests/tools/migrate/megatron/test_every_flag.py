"""Every flag of every version of Megatron that pretrain migrate knows has a meaning, whatever its spelling."""

from __future__ import annotations

from pretrain.tools.migrate.meaning import Mapped
from pretrain.tools.migrate.megatron.deepspeed_file import OF_FILE
from pretrain.tools.migrate.megatron.meanings import FUNCTIONS, MEANINGS, MEANINGS_OF, meaning_of, spelled
from pretrain.tools.migrate.programs import programs


def of_megatron():
    return [program for program in programs().values() if program.dialect == "megatron"]


def test_every_flag_has_a_meaning():
    missing = {name for program in of_megatron() for name in program.flags if meaning_of(name, program.name) is None}
    assert missing == set()


def test_a_program_with_meanings_of_its_own_exists_and_has_the_flags():
    for beginning, own in MEANINGS_OF.items():
        flags = {name for program in of_megatron() if program.name.startswith(beginning) for name in program.flags}
        assert [name for name in own if name not in flags] == []


def test_every_spelling_has_the_meaning_of_its_flag():
    """The hints of `pretrain run` find a flag by its spelling alone; of --disable-msc they have the newest meaning."""
    known = {name.lower(): name for name in MEANINGS}
    wrong = []
    for program in of_megatron():
        for spelling, flag in program.spelled.items():
            if spelling == "--disable-msc":
                continue
            name, given = spelled(spelling.lstrip("-").replace("-", "_").lower(), known)
            is_same = MEANINGS.get(known.get(name, name)) == MEANINGS[flag.name]
            is_given = given is None or given is flag.given
            wrong += [] if is_same and is_given else [(program.name, spelling, flag.name, flag.given)]
    assert wrong == []


def test_a_switch_that_is_off_makes_no_key_by_itself():
    """Without `how`, True and False are written as they are: that is right only for a key that is a switch."""
    switches = {flag.name for program in of_megatron() for flag in program.flags.values() if flag.kind == "switch"}
    values = {name: dict(MEANINGS[name].values) for name in switches if isinstance(MEANINGS[name], Mapped)}
    assert [name for name, of_flag in values.items() if of_flag and not MEANINGS[name].how] == []


def test_every_key_that_is_worked_out_has_a_function():
    """DeepSpeed's file gives some of the others."""
    tables = (MEANINGS, *MEANINGS_OF.values())
    keys = {found.key for table in tables for found in table.values() if isinstance(found, Mapped) and found.how}
    assert keys - set(FUNCTIONS) - set(OF_FILE) == set()
