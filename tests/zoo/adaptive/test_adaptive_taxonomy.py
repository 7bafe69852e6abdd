"""Table 1 of Croce et al. 2022 agrees with the statements of its text."""

from saddlepoint.zoo import adaptive
from saddlepoint.zoo.adaptive import TABLE


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
