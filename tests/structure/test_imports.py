"""Importing pretrain has no side effects, and fast commands import little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from pretrain.cli.command_line import commands
from structure.sources import BACKENDS, ROOT

EFFECTS = Path(__file__).with_name("import_effects.py")
HEAVY = "{'torch', 'megatron', 'numpy', 'rich', 'tokenizers', 'tensorboard'} & set(sys.modules)"


def effects(folder, package, *options, **environment):
    """Return what importing the package's modules does, by module; files that they make go below `folder`."""
    temporary = dict.fromkeys(["HOME", "TMPDIR", "XDG_CACHE_HOME"], str(folder))
    done = subprocess.run(
        [sys.executable, str(EFFECTS), package, *options],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **temporary, **environment},
    )
    return json.loads(done.stdout.splitlines()[-1])


def imported_after(program):
    """Return which heavy packages a program has imported when it ends."""
    program = f"import sys\ntry:\n    {program}\nexcept SystemExit:\n    pass\nprint(sorted({HEAVY}))\n"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.splitlines()[-1]


def test_importing_any_module_of_pretrain_changes_nothing(tmp_path):
    changes = effects(tmp_path, "pretrain", "--bridge")
    assert {module for module in changes if not module.startswith("pretrain.testing.")} == set()  # an old name warns


@pytest.mark.parametrize("package", [path.parent.name for path in sorted(BACKENDS.glob("*/src/*/__init__.py"))])
def test_importing_any_module_of_a_backend_changes_nothing(tmp_path, package):
    assert effects(tmp_path, package) == {}


GUILTY = {
    "environment": "import os; os.environ.setdefault('GUILTY', '1')",
    "torch.distributed": (
        "from torch.distributed import HashStore, init_process_group\n"
        "init_process_group('gloo', store=HashStore(), rank=0, world_size=1)"
    ),
    "warning filters": "import warnings; warnings.filterwarnings('ignore', message='guilty')",
    "files": "import tempfile; tempfile.mkstemp()",
    "signal handlers": "import signal; signal.signal(signal.SIGUSR1, lambda *_: None)",
    "log handlers": "import logging; logging.getLogger().addHandler(logging.NullHandler())",
    "threads": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "sys.path": "import sys; sys.path.append('guilty')",
    "sys.meta_path": "import sys; sys.meta_path.append(type('Guilty', (), {'find_spec': lambda *_: None}))",
    "torch's settings": "import torch; torch.set_num_threads(2)",
    "random numbers": "import torch; torch.rand(1)",
    "output": "print('guilty')",
}


def test_a_module_that_does_something_is_found_and_others_are_not(tmp_path):
    package = tmp_path / "site" / "guilty"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "innocent.py").write_text("import json\nVALUE = json.loads('1')\n")
    for number, source in enumerate(GUILTY.values()):
        (package / f"module_{number:02d}.py").write_text(source)
    (folder := tmp_path / "empty").mkdir()
    expected = {f"guilty.module_{number:02d}": [name] for number, name in enumerate(GUILTY)}
    assert effects(folder, "guilty", PYTHONPATH=str(package.parent)) == expected


def test_help_of_no_command_imports_anything_heavy():
    names = commands.list_commands(click.Context(commands))
    shown = "; ".join(f"commands.main([{name!r}, '--help'], standalone_mode=False)" for name in names)
    assert imported_after(f"from pretrain.cli.command_line import commands; {shown}") == "[]"


def test_reading_a_recipe_imports_nothing_heavy():
    assert imported_after("from pretrain.recipe import load_recipe; load_recipe('recipes/gpt3.yml')") == "[]"


def test_a_wrong_recipe_is_reported_before_anything_heavy_is_imported():
    program = "from pretrain.cli.main import main; main(['recipes/gpt3.yml', '--set', 'model.num_layer=2'])"
    assert imported_after(program) == "[]"


def test_listing_what_is_installed_imports_no_plugin():
    program = "from pretrain.plugins.host.discovery import installed_backends; installed_backends()"
    assert imported_after(program) == "[]"
