"""A forked process behaves as a started one."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forked_python import client

SHOW = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "path": [name for name in sys.path if "site-packages" not in name], "name": __name__,
    "file": globals().get("__file__"), "folder": os.getcwd(), "environment": dict(os.environ),
    "session": os.getsid(0) == os.getpid(), "parent": os.getppid(), "threads": len(os.listdir("/proc/self/task")),
    "main": sys.modules["__main__"].__dict__ is globals(),
}))
"""
ENDS = {
    "well": "pass",
    "by an error": "raise ValueError('no room')",
    "by a message": "import sys; sys.exit('no room')",
    "by a code": "import sys; sys.exit(7)",
    "by a message nobody reads": "import os, sys; os.close(2); os.close(1); print(1); sys.exit('no room')",
    "by output nobody reads": "import os; print(1); os.close(1)",
    "by a signal": "import os; os.kill(os.getpid(), 9)",
    "by Ctrl-C": "import os; os.kill(os.getpid(), 2)",
    "by exit functions": "import atexit; atexit.register(print, 'last')",
    "by exit functions after a message": "import atexit; atexit.register(exit, 1); exit('no room')",
    "in another thread": "import threading; threading.Timer(0.1, print, ['last']).start()",
    "as its child": "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', 'exit(9)']).returncode)",
}


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(SHOW)
    return tmp_path


@pytest.mark.parametrize("start_new_session", [False, True])
@pytest.mark.parametrize(
    "command",
    [["-m", "program", "a", "-b"], ["-P", "-W", "ignore", "-u", "-m", "program"], ["program.py", "1"], ["-c", SHOW]],
    ids=["module", "options", "script", "code"],
)
def test_it_sees_what_the_interpreter_would_give_it(program, command, start_new_session):
    options = {
        "env": {"LC_ALL": "C.UTF-8", "PYTHONPATH": f"{program}:/nowhere"},
        "start_new_session": start_new_session,
        "stdout": subprocess.PIPE,
    }
    forked, started = (
        json.loads(popen([sys.executable, *command], cwd=program, **options).communicate()[0])
        for popen in (client.Popen, subprocess.Popen)
    )
    assert forked == started


@pytest.mark.parametrize("options", [[], ["-P"]], ids=["", "-P"])
def test_it_goes_on_as_the_program_that_replaces_it(program, options):
    then = [sys.executable, *options, "-m", "program", "a"]
    code = f"import os; os.environ['ADDED'] = '1'; os.execv({sys.executable!r}, {then!r})"
    given = {"env": {"LC_ALL": "C.UTF-8", "PYTHONPATH": str(program)}, "cwd": program, "stdout": subprocess.PIPE}
    forked, started = (
        json.loads(popen([sys.executable, "-c", code], **given).communicate()[0])
        for popen in (client.Popen, subprocess.Popen)
    )
    assert forked == started


def test_a_script_that_names_this_interpreter_is_forked_and_found_on_the_path(program):
    (program / "tool").write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv, 'torch' in sys.modules)\n")
    (program / "tool").chmod(0o755)
    process = client.Popen(["tool", "a"], env={"PATH": str(program)}, stdout=subprocess.PIPE, text=True)
    assert process.communicate()[0] == f"{[str(program / 'tool'), 'a']} True\n"


def test_sitecustomize_is_imported_again(program):
    (program / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = 'yes'\n")
    command = [sys.executable, "-c", "import builtins; print(builtins.customized)"]
    process = client.Popen(command, env={"PYTHONPATH": str(program)}, stdout=subprocess.PIPE, text=True)
    assert process.communicate()[0] == "yes\n"


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_as_one_that_is_started(how, monkeypatch):
    command = [sys.executable, "-c", ENDS[how]]
    started = subprocess.run(command, capture_output=True, text=True, check=False)
    monkeypatch.setattr(subprocess, "Popen", client.Popen)
    forked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


def test_its_imports_are_there_already():
    code = "import sys; sys.exit(not {'torch', 'megatron.core', 'pretrain.engine.build'} <= set(sys.modules))"
    assert client.Popen([sys.executable, "-c", code]).wait() == 0


def test_its_imports_are_never_searched_for_garbage():
    code = "import gc; count = gc.get_freeze_count(); gc.unfreeze(); exit(not 0 < count == gc.get_freeze_count())"
    assert client.Popen([sys.executable, "-c", code]).wait() == 0


def test_another_program_is_started():
    assert client.Popen(["sh", "-c", "exit 3"]).wait() == 3


def test_it_is_killed_with_the_server_of_its_own_children(tmp_path):
    code = "import os, time; print(open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read(), flush=True)"
    process = client.Popen([sys.executable, "-c", f"{code}; time.sleep(600)"], stdout=subprocess.PIPE, text=True)
    (server,) = process.stdout.readline().split()
    process.kill()
    assert process.wait() == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while Path("/proc", server).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path("/proc", server).exists()
