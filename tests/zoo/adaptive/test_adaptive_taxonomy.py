"""Tables 1 and 5 of Croce et al. 2022 agree with the statements of its text."""

from collections import Counter
from importlib import import_module

from saddlepoint.defenses import Defense
from saddlepoint.zoo import adaptive
from saddlepoint.zoo.adaptive import INDEX, TABLE
from saddlepoint.zoo.adaptive.taxonomy import BLOCKS, PRINCIPLES


def with_block(block):
    """Return the names of the defenses with this building block."""
    return {row.name for row in TABLE if block in row.blocks}


def test_the_counts_agree_with_the_text():
    """Sec. 2.2: nine iterate, seven have an auxiliary network, three are random, one has data."""
    assert len(TABLE) == 9
    assert [len(with_block(block)) for block in ("IA", "AN", "R", "ED")] == [9, 7, 3, 1]
    assert {row.name for row in TABLE if row.principle == "MA"} == {"SODEF", "ClosedLoopControl"}
    assert with_block("ED") == {"ContrastiveReversal"}
    assert with_block("IA") - with_block("AN") == {"HedgeDefense", "AntiAdversary"}


def test_the_accuracies_agree_with_the_text():
    assert all(row.found < row.reported for row in TABLE)
    assert sum(row.found < 50 for row in TABLE) == 5  # Sec. 3: five are below 50 %
    weakened = {row.paper.split()[0] for row in TABLE if row.found < row.static}
    assert weakened == {"Kang", "Wu", "Hwang", "Mao"}  # Sec. 3: four weaken their static model


def test_every_row_names_a_class():
    assert all(isinstance(getattr(adaptive, row.name), type) for row in TABLE)


def test_the_index_has_the_fourteen_defenses_of_table_5_and_each_names_a_defense():
    assert len({row.paper for row in INDEX}) == 14
    venues = Counter(row.venue for row in INDEX)
    assert venues == {"ICLR": 6, "ICML": 3, "arXiv": 2, "NeurIPS": 2, "ISIDA": 1}
    for row in INDEX:
        module, _, name = row.place.partition(":")
        assert issubclass(getattr(import_module(module), name), Defense), row.place
        assert row.name == name
        assert row.principle in PRINCIPLES
        assert set(row.blocks) <= set(BLOCKS)


def test_the_two_tables_share_no_defense():
    assert not {row.name for row in INDEX} & {row.name for row in TABLE}
