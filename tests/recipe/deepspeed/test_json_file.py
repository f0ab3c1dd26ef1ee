"""Malformed DeepSpeed files are refused with file and line."""

from __future__ import annotations

import pytest

from pretrain.errors import RecipeError
from pretrain.recipe import make_recipe
from pretrain.recipe.deepspeed.json_file import read_json

HERE = "recipe.yml:5: engine.deepspeed_config"


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Read a text as ds.json."""
    monkeypatch.chdir(tmp_path)

    def write_and_read(text):
        (tmp_path / "ds.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_json("ds.json", HERE)

    return write_and_read


def test_every_key_knows_its_line(read):
    text = '{\n "a": {"b": "{\\"x\\": [1,",\n  "c": [{"d": 1,\n"e": 2}, {"d": 3}]}, "f":\n\n 5\r\n, "g.h": {}}'
    file = read(text)
    assert file.values == {"a.b": '{"x": [1,', "a.c": [{"d": 1, "e": 2}, {"d": 3}], "f": 5, "'g.h'": {}}
    assert {path: place for path, place in file.places.items() if "c." not in path} == {
        "a": "ds.json:2",
        "a.b": "ds.json:2",
        "a.c": "ds.json:3",
        "f": "ds.json:4",
        "'g.h'": "ds.json:7",
    }
    assert file.place("a.b") == "ds.json:2: a.b"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{\n"a": 1,}', ["ds.json:2: this is not JSON: ", "Comments and trailing commas are not JSON either."]),
        ('{\n// stage\n"a": 1}', ["ds.json:2: this is not JSON: ", "Comments and trailing commas "]),
        ("", ["ds.json:1: this is not JSON: Expecting value.", "Comments and trailing commas "]),
        ("[1]", ["ds.json: a DeepSpeed file must hold one object, {...}.", f"{HERE} names this file."]),
        ('{"a": {"b": 1,\n"b": 2}}', ["ds.json:2: a.b is given twice, in line 1 too.", "Remove one of them."]),
        (
            b'{"a": "\xff"}',
            [f"{HERE}: ds.json: this file cannot be read: it is not UTF-8 text.", "Give the path of a "],
        ),
        ("[" * 100_000, ["ds.json: this is not JSON that can be read: "]),
        ('{"a": ' + "9" * 5000 + "}", ["ds.json: this is not JSON that can be read: "]),
    ],
)
def test_malformed_json_is_named_by_its_line(read, text, expected):
    with pytest.raises(RecipeError) as caught:
        read(text)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(expected)
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines


def test_a_missing_file_suggests_its_neighbour(read):
    read("{}")
    with pytest.raises(RecipeError) as caught:
        read_json("dss.json", HERE)
    assert str(caught.value).splitlines() == [
        f"{HERE}: dss.json: there is no such file. Did you mean 'ds.json'?",
        "The path is relative to the working directory.",
    ]


def test_an_address_is_no_missing_file():
    with pytest.raises(RecipeError, match=f"^{HERE}: 's3://b/ds.json' is a URL; only local files are"):
        read_json("s3://b/ds.json", HERE)


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(RecipeError, match="this file cannot be read: Is a directory"):
        read_json(str(tmp_path), HERE)


def test_the_recipe_that_names_it_is_named(smallest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    smallest["engine"] = {"name": "deepspeed", "deepspeed_config": "absent.json"}
    with pytest.raises(
        RecipeError, match=r"^recipe: engine\.deepspeed_config: absent\.json: there is no such file\.\n"
    ):
        make_recipe(smallest)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_number_is_finite(refused, number):
    (line,) = refused(f'{{"gradient_clipping": {number}}}')
    assert line.startswith("ds.json:1: gradient_clipping: optimizer.clip_grad: ")
    assert line.endswith(" is not a number.")


def test_a_key_that_cannot_be_printed_is_shown_escaped(refused):
    (line,) = refused('{"\\ud800\\n": 1}')
    assert line == r"ds.json:1: '\ud800\n': unknown key."
