"""`pretrain doctor --faults` says where its faults are now."""

import pytest

from pretrain.cli.main import main


@pytest.mark.parametrize("arguments", [["--faults"], ["--faults", "--folder", "shared", "--json", "--backend", "cuda"]])
def test_it_is_an_error_that_names_the_command(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    first, second = capsys.readouterr().err.splitlines()
    assert (ended.value.code, first.split()[0]) == (2, "--faults")
    assert "python -m chaos" in second
