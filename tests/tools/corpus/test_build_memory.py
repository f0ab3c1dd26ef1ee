"""A build's memory does not grow with its corpus."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

BUILD = """
import sys
from pathlib import Path
from pretrain.tools.corpus.build import build_tokens
from pretrain.data.tokenizers.tokenizer import TokenizerFiles
build_tokens([Path(sys.argv[1])], Path(sys.argv[2]), TokenizerFiles("bytes"), append_eod=True)
print(Path("/proc/self/status").read_text())
"""
MEGABYTE = 10**6


def peak(corpus, output):
    """Return the largest resident size of a process that builds, in bytes."""
    command = [sys.executable, "-c", BUILD, str(corpus), str(output)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(re.search(r"^VmHWM:\s+(\d+) kB$", told, re.MULTILINE)[1]) * 1024


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the largest size so far")
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    line = json.dumps({"text": "once upon a time " * 300}) + "\n"
    sizes = []
    for megabytes in (20, 200):
        corpus.write_text(line * (megabytes * MEGABYTE // len(line)))
        sizes.append(peak(corpus, tmp_path / str(megabytes)))
    small, large = sizes
    assert large < small + 20 * MEGABYTE
