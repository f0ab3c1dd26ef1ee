import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import LaunchError
from pretrain.launch.schedulers import hosts

PLAIN = st.from_regex(r"[a-z][a-z0-9-]{0,6}(\.[a-z]{1,3})?", fullmatch=True)
INDEX = st.integers(0, 120)


@st.composite
def bracketed(draw):
    """A name such as gpu[007-009,12]-ib and the hosts it stands for, written by the rule of the manual."""
    before, after = draw(PLAIN), draw(st.sampled_from(["", "-ib", ".cluster"]))
    texts, names = [], []
    for _ in range(draw(st.integers(1, 3))):
        first, count, width = draw(INDEX), draw(st.integers(1, 4)), draw(st.integers(1, 4))
        texts.append(f"{first:0{width}}" if count == 1 else f"{first:0{width}}-{first + count - 1:0{width}}")
        width = len(f"{first:0{width}}")
        names += [before + str(index).zfill(width) + after for index in range(first, first + count)]
    return f"{before}[{','.join(texts)}]{after}", names


@given(st.lists(st.one_of(bracketed(), PLAIN.map(lambda name: (name, [name]))), min_size=1, max_size=4))
def test_a_node_list_names_its_hosts_in_order(parts):
    text, expected = ",".join(part for part, _ in parts), [name for _, names in parts for name in names]
    assert list(hosts(text)) == expected
    assert next(hosts(text)) == expected[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("login", ["login"]),
        ("tux[1-3,07],login", ["tux1", "tux2", "tux3", "tux07", "login"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("rack[1-2]node[1-2]", ["rack1node1", "rack1node2", "rack2node1", "rack2node2"]),
    ],
)
def test_examples(text, expected):
    assert list(hosts(text)) == expected


def test_the_first_of_very_many_hosts_is_found_at_once():
    assert next(hosts("n[1-999999999999]")) == "n1"


@pytest.mark.parametrize("text", ["", "n[1-", "n[1-2", "n]", "n[a-b]", "n1,,n2", "n 1", "n[1-2-3]"])
def test_a_malformed_node_list_is_an_error(text):
    with pytest.raises(LaunchError, match="not a Slurm node list"):
        list(hosts(text))
