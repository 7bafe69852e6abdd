"""The adaptive test-time defenses of Croce et al. 2022, Table 1, sorted by what they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Principle = Literal["IP", "MA"]
Block = Literal["IA", "AN", "R", "ED"]
PRINCIPLES: Mapping[Principle, str] = {
    "IP": "input purification",
    "MA": "model adaptation",
}  # Sec. 2.1
BLOCKS: Mapping[Block, str] = {  # Sec. 2.2
    "IA": "iterative algorithm",
    "AN": "auxiliary network",
    "R": "randomization",
    "ED": "external data",
}


@dataclass(frozen=True)
class Surveyed:
    """One row of the table. Accuracies are in percent, on 1000 images of CIFAR-10, Linf, radius 8/255 unless said otherwise."""

    name: str  # of the class here
    paper: str
    venue: str
    principle: Principle
    blocks: tuple[Block, ...]
    inference: int  # time of an answer in times of the static model's
    attack: str  # that found the least accuracy
    reported: float  # robust accuracy by the defense's own paper
    found: float
    static: float  # of the underlying static model
    radius: float = 8 / 255


TABLE: tuple[Surveyed, ...] = (
    Surveyed(
        "SODEF",
        "Kang et al. 2021",
        "NeurIPS",
        "MA",
        ("IA", "AN"),
        2,
        "Transfer APGD",
        57.76,
        52.2,
        53.9,
    ),
    Surveyed(
        "ClosedLoopControl",
        "Chen et al. 2021",
        "ICLR",
        "MA",
        ("IA", "AN"),
        59,
        "APGD+BPDA",
        34.5,
        5.6,
        0.0,
        2 / 255,
    ),
    Surveyed(
        "HedgeDefense",
        "Wu et al. 2021",
        "ArXiv",
        "IP",
        ("IA", "R"),
        46,
        "Transfer APGD+BPDA+EoT",
        65.70,
        61.0,
        63.0,
    ),
    Surveyed(
        "AntiAdversary",
        "Alfarra et al. 2022",
        "AAAI",
        "IP",
        ("IA",),
        8,
        "RayS (decision-based)",
        79.2,
        66.6,
        66.6,
    ),
    Surveyed(
        "SOAP",
        "Shi et al. 2020",
        "ICLR",
        "IP",
        ("IA", "AN"),
        518,
        "APGD+BPDA (traj.)",
        51.02,
        3.7,
        0.0,
    ),
    Surveyed("ATLD", "Qian et al. 2021", "ArXiv", "IP", ("IA", "AN"), 4, "APGD", 65.07, 12.6, 7.7),
    Surveyed(
        "AIDPurifier",
        "Hwang et al. 2021",
        "ICML(W)",
        "IP",
        ("IA", "AN"),
        40,
        "APGD+BPDA",
        52.65,
        43.8,
        49.3,
    ),
    Surveyed(
        "ContrastiveReversal",
        "Mao et al. 2021",
        "ICCV",
        "IP",
        ("IA", "AN", "R", "ED"),
        407,
        "APGD+BPDA+EoT",
        63.83,
        58.4,
        59.4,
    ),
    Surveyed(
        "AdaptiveDenoising",
        "Yoon et al. 2021",
        "ICML",
        "IP",
        ("IA", "AN", "R"),
        176,
        "APGD+EoT",
        69.71,
        33.7,
        0.0,
    ),
)


def surveyed(name: str) -> Surveyed | None:
    """The row of the defense whose class is called so, if the table has it."""
    return next((row for row in TABLE if row.name == name), None)
