"""The claims of the paper that our records decide."""

from __future__ import annotations

from saddlepoint.papers.claims import CellReference, Claim


def _stronger(
    defense: str, record: str, row: tuple[str, ...], pair: tuple[str, str], clean: str
) -> Claim:
    """A claim that the second attack of a pair leaves a lower accuracy than the first."""
    weaker, stronger = pair
    return Claim(
        f"{defense}: {stronger} finds a lower accuracy than {weaker} on the static network or on "
        "one adapted model.",
        f"transductive/{record}",
        CellReference(0, row, weaker),
        ", ".join(row[1:]) or "trained here",
        row[0],
        second=CellReference(0, row, stronger),
        base=CellReference(0, row, clean),
    )


_ROBUST = "cifar10/triplewins_rdi_resnet38"

CLAIMS = (
    Claim(
        "DENT is more robust than its static network under the same points of PGD (a claim of "
        "DENT's authors; Chen et al. find little difference, Table 2).",
        "transductive/table-2-real",
        CellReference(0, (_ROBUST,), "DENT minus static, both under PGD's points"),
        f"{_ROBUST}, last exit, Linf 8/255",
        "cifar10",
        base=CellReference(0, (_ROBUST,), "static, clean"),
    ),
    Claim(
        "In batches sorted by label, DENT is less robust than its static network under the same "
        "points of PGD (Table 5).",
        "transductive/table-5-real",
        CellReference(0, (_ROBUST,), "DENT minus static, both under PGD's points"),
        f"{_ROBUST}, last exit, Linf 8/255",
        "cifar10",
        expected="negative",
        base=CellReference(0, (_ROBUST,), "static, clean"),
    ),
    Claim(
        "DENT: FPA finds a lower accuracy than PGD on the static network.",
        "transductive/table-2-real",
        CellReference(0, (_ROBUST,), "DENT, PGD's points"),
        f"{_ROBUST}, last exit, Linf 8/255",
        "cifar10",
        second=CellReference(0, (_ROBUST,), "DENT, FPA"),
        base=CellReference(0, (_ROBUST,), "static, clean"),
    ),
    _stronger("RMC", "table-1", ("mnist", "Standard"), ("PGD", "GMSA-MIN"), "static, clean"),
    _stronger("RMC", "table-1", ("mnist", "Madry"), ("PGD", "GMSA-MIN"), "static, clean"),
    _stronger("DANN", "table-3", ("mnist",), ("PGD", "GMSA-MIN"), "DANN, clean"),
    _stronger("TADV", "table-4", ("mnist",), ("PGD", "GMSA-AVG"), "TADV, clean"),
)
