"""contextcaps bench: its page names what can be measured."""

import pytest

from contextcaps.cli import main
from contextcaps.experiments.bench.cases import HEADS, SIZES
from contextcaps.experiments.bench.ways import WAYS


def test_the_page_names_all_sizes_heads_and_ways(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    words = capsys.readouterr().out.replace(",", " ").replace(";", " ").split()
    assert {*SIZES, *HEADS, *WAYS} <= set(words)
