"""The adaptive test-time defenses of Croce et al. 2022, Tables 1 and 5, and their principles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Principle = Literal["IP", "MA"]
Block = Literal["IA", "AN", "R", "ED"]
PRINCIPLES: Mapping[Principle, str] = {  # Sec. 2.1
    "IP": "input purification",
    "MA": "model adaptation",
}
BLOCKS: Mapping[Block, str] = {  # Sec. 2.2
    "IA": "iterative algorithm",
    "AN": "auxiliary network",
    "R": "randomization",
    "ED": "external data",
}


@dataclass(frozen=True)
class Surveyed:
    """One row of Table 1.

    Accuracies are in percent, on 1000 images of CIFAR-10 under Linf perturbations of `radius`.
    """

    name: str  # class name in `saddlepoint.zoo.adaptive`
    paper: str
    venue: str
    principle: Principle
    blocks: tuple[Block, ...]  # building blocks
    inference: int  # inference time as a multiple of the static model's
    attack: str  # attack with the lowest robust accuracy
    reported: float  # robust accuracy reported by the authors of the defense
    found: float  # robust accuracy measured by Croce et al.
    static: float  # robust accuracy of the underlying static model
    radius: float = 8 / 255


TABLE: tuple[Surveyed, ...] = (
    Surveyed(
        name="SODEF",
        paper="Kang et al. 2021",
        venue="NeurIPS",
        principle="MA",
        blocks=("IA", "AN"),
        inference=2,
        attack="Transfer APGD",
        reported=57.76,
        found=52.2,
        static=53.9,
    ),
    Surveyed(
        name="ClosedLoopControl",
        paper="Chen et al. 2021",
        venue="ICLR",
        principle="MA",
        blocks=("IA", "AN"),
        inference=59,
        attack="APGD+BPDA",
        reported=34.5,
        found=5.6,
        static=0.0,
        radius=2 / 255,
    ),
    Surveyed(
        name="HedgeDefense",
        paper="Wu et al. 2021",
        venue="ArXiv",
        principle="IP",
        blocks=("IA", "R"),
        inference=46,
        attack="Transfer APGD+BPDA+EoT",
        reported=65.7,
        found=61.0,
        static=63.0,
    ),
    Surveyed(
        name="AntiAdversary",
        paper="Alfarra et al. 2022",
        venue="AAAI",
        principle="IP",
        blocks=("IA",),
        inference=8,
        attack="RayS (decision-based)",
        reported=79.2,
        found=66.6,
        static=66.6,
    ),
    Surveyed(
        name="SOAP",
        paper="Shi et al. 2020",
        venue="ICLR",
        principle="IP",
        blocks=("IA", "AN"),
        inference=518,
        attack="APGD+BPDA (traj.)",
        reported=51.02,
        found=3.7,
        static=0.0,
    ),
    Surveyed(
        name="ATLD",
        paper="Qian et al. 2021",
        venue="ArXiv",
        principle="IP",
        blocks=("IA", "AN"),
        inference=4,
        attack="APGD",
        reported=65.07,
        found=12.6,
        static=7.7,
    ),
    Surveyed(
        name="AIDPurifier",
        paper="Hwang et al. 2021",
        venue="ICML(W)",
        principle="IP",
        blocks=("IA", "AN"),
        inference=40,
        attack="APGD+BPDA",
        reported=52.65,
        found=43.8,
        static=49.3,
    ),
    Surveyed(
        name="ContrastiveReversal",
        paper="Mao et al. 2021",
        venue="ICCV",
        principle="IP",
        blocks=("IA", "AN", "R", "ED"),
        inference=407,
        attack="APGD+BPDA+EoT",
        reported=63.83,
        found=58.4,
        static=59.4,
    ),
    Surveyed(
        name="AdaptiveDenoising",
        paper="Yoon et al. 2021",
        venue="ICML",
        principle="IP",
        blocks=("IA", "AN", "R"),
        inference=176,
        attack="APGD+EoT",
        reported=69.71,
        found=33.7,
        static=0.0,
    ),
)


@dataclass(frozen=True)
class Indexed:
    """One row of Table 5: a defense that the paper lists but does not evaluate.

    The principle and the building blocks follow the definitions of Sec. 2.1 and 2.2 applied to the
    implementation here. The marks of the printed table were not at hand.
    """

    place: str  # "module:class" of the implementation
    paper: str
    venue: str
    principle: Principle
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        """Class name of the implementation."""
        return self.place.partition(":")[2]


_FURTHER = "saddlepoint.zoo.adaptive.further"
_TRANSDUCTIVE = "saddlepoint.zoo.transductive"
INDEX: tuple[Indexed, ...] = (
    Indexed(f"{_FURTHER}:PixelDefend", "Song et al. 2018", "ICLR", "IP", ("IA", "AN")),
    Indexed(f"{_FURTHER}:DefenseGAN", "Samangouei et al. 2018", "ICLR", "IP", ("IA", "AN", "R")),
    Indexed(f"{_FURTHER}:TransformationDefense", "Guo et al. 2018", "ICLR", "IP", ("IA", "R")),
    Indexed(f"{_FURTHER}:AnalysisBySynthesis", "Schott et al. 2019", "ICLR", "MA", ("IA", "AN")),
    Indexed(f"{_TRANSDUCTIVE}:RMC", "Wu et al. 2020b", "ICML", "MA", ("IA", "ED")),
    Indexed(f"{_FURTHER}:EBMPurifier", "Hill et al. 2021", "ICLR", "IP", ("IA", "AN", "R")),
    Indexed(f"{_TRANSDUCTIVE}:DENT", "Wang et al. 2021a", "arXiv", "MA", ("IA",)),
    Indexed(f"{_FURTHER}:CovariateShiftAdaptation", "Nandy et al. 2021", "arXiv", "MA", ("ED",)),
    Indexed(
        f"{_FURTHER}:JointOptimization", "Gurumurthy et al. 2021", "NeurIPS", "IP", ("IA", "AN")
    ),
    Indexed(f"{_FURTHER}:Tailoring", "Alet et al. 2021", "NeurIPS", "MA", ("IA", "R")),
    Indexed(f"{_TRANSDUCTIVE}:TADV", "Chen et al. 2022", "ICLR", "MA", ("IA", "ED")),
    Indexed(f"{_FURTHER}:ImplicitRepresentation", "Rusu et al. 2022", "ICML", "IP", ("IA", "AN")),
    Indexed(f"{_FURTHER}:DiffusionPurifier", "Nie et al. 2022", "ICML", "IP", ("IA", "AN", "R")),
    Indexed(
        f"{_FURTHER}:AttributionSharpening", "Perez Tobia et al. 2022", "ISIDA", "IP", ("IA", "AN")
    ),
)


def surveyed(name: str) -> Surveyed | None:
    """Return the row of the defense with this class name, or None if it is not in the table."""
    return next((row for row in TABLE if row.name == name), None)
