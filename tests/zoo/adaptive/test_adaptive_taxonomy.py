"""Table 1 of Croce et al. 2022, against what its text says."""

from saddlepoint.zoo import adaptive
from saddlepoint.zoo.adaptive import TABLE


def having(block):
    return {row.name for row in TABLE if block in row.blocks}


def test_the_text_s_counts_hold():
    """Sec. 2.2: all iterate, seven in nine have an auxiliary network, three are random, one has external data."""
    assert len(TABLE) == 9
    assert [len(having(block)) for block in ("IA", "AN", "R", "ED")] == [9, 7, 3, 1]
    assert {row.name for row in TABLE if row.principle == "MA"} == {"SODEF", "ClosedLoopControl"}
    assert having("ED") == {"ContrastiveReversal"}
    assert having("IA") - having("AN") == {"HedgeDefense", "AntiAdversary"}


def test_none_keeps_what_it_reported():
    assert all(row.found < row.reported for row in TABLE)
    assert sum(row.found < 50 for row in TABLE) == 5  # Sec. 3: five are well below 50 %
    weakened = {row.paper.split()[0] for row in TABLE if row.found < row.static}
    assert weakened == {"Kang", "Wu", "Hwang", "Mao"}  # Sec. 3: four weaken their static model


def test_the_ones_written_here_are_found_under_their_names():
    here = {"HedgeDefense", "AntiAdversary", "SOAP", "AIDPurifier", "AdaptiveDenoising"}
    assert here <= {row.name for row in TABLE}
    assert all(hasattr(adaptive, name) for name in here)
