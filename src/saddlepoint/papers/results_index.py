"""The first results page: claims of the papers with verdict, effect, interval and record.

`python -m saddlepoint.papers.results_index benchmarks/records docs/results/index.md`
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from saddlepoint.papers.adaptive.claims import CLAIMS as ADAPTIVE
from saddlepoint.papers.claims import Claim
from saddlepoint.papers.deq.claims import CLAIMS as DEQ
from saddlepoint.papers.multi_exit.claims import CLAIMS as MULTI_EXIT
from saddlepoint.papers.result import Result, read
from saddlepoint.papers.results_glossary import glossary
from saddlepoint.papers.transductive.claims import CLAIMS as TRANSDUCTIVE
from saddlepoint.papers.verdicts import Decided, Verdict, decide
from saddlepoint.papers.write import stale_reasons
from saddlepoint.phrases import count, count_of

PAPERS: Mapping[str, tuple[str, Sequence[Claim]]] = {
    "multi-exit": ("Xu et al.: multi-exit networks in an attack-defense game", MULTI_EXIT),
    "deq": ("Yang et al. 2022: deep equilibrium models", DEQ),
    "adaptive": ("Croce et al. 2022: adaptive test-time defenses", ADAPTIVE),
    "transductive": ("Chen et al. 2022: transductive defenses", TRANSDUCTIVE),
}
_COLUMNS = ("claim", "verdict", "effect, points, % or count", "images", "network, data", "record")
_READING = (
    "An effect is shown with its 95 % interval over images and [the paper's number] where it "
    "reports one. Differences are positive in the direction of the claim. *Confirmed*: the "
    "interval is above zero. *Contradicted*: it is below zero. *Not confirmed*: it contains zero. "
    "Only the direction of a difference is judged: a confirmed effect may be much smaller or "
    "larger than the paper's, and the pages of the papers compare sizes and orders as well.",
    "*Compatible*: the claim is that an accuracy has the paper's value, or that there is no "
    "effect, and the interval contains this value, or zero. Fewer images have a wider interval "
    "and are compatible with more values, so this is weaker than confirmed, and counted "
    "separately. An interval without the value contradicts the claim; where an attack is said to "
    "break a defense, an interval below the paper's accuracy confirms it. A claim that has no "
    "exceptions is compatible if there is none, and not confirmed otherwise. *Premise not met*: "
    "the paper makes the claim under a condition that does not hold here. *Not testable*: both "
    "sides of the comparison are the same here. These two are neither confirmed nor contradicted.",
    "Differences of two cells have the interval of independent samples, which is too wide where "
    "both use the same images; tables of differences have paired intervals. Budgets of attacks "
    "are quoted from the record. *Stale record*: made "
    "before a change of the code that may affect it; the page gives the reason. *Base network x % "
    "clean*: less than 70 % on CIFAR-10 or 95 % on MNIST. Costs, and tables that decide no claim "
    "about accuracy, are on the pages of the papers. A record's page gives its command, commit, "
    "weights by SHA-256 and all numbers.",
)
_FIGURES = {  # captions by the path of a chart beside the page
    "multi-exit/triple-wins-payoffs.svg": "Accuracy by attacked exits and the defender's exits",
    "multi-exit/resnet4b-pgd-at-payoffs.svg": "Accuracy by attacked exits and the defender's "
    "exits, of the network with attached exits",
    "adaptive/table-1-evaluations.svg": "Defenses around a robust network as evaluations improve",
    "adaptive/radii.svg": "A defense and its static network at several radii",
    "deq/figure-2-accuracy.svg": "Accuracy of every solver state under the ready-made attack",
    "deq/cifar10-accuracy.svg": "Accuracy of every solver state under the ready-made attack, of "
    "the networks that are trained here",
    "deq/cifar10-residual.svg": "Relative error of every solver state, of the networks that are "
    "trained here",
}
_RERUN = (
    "`--models FOLDER` is a folder with the weight files of networks that others trained. Its "
    "modules.py defines `load(name)`, which returns the network of a weight file in eval mode; "
    "loaders.py may load further networks. `--data FOLDER` contains the data sets."
)


def write_index(records: Path, out: Path) -> Path:
    """Write the page of all claims.

    Args:
        records: folder with one folder of records per paper.
        out: Markdown file to write, beside the pages of the papers.

    Returns:
        The path `out`.

    Raises:
        FileNotFoundError: if a claim names a record that does not exist.
        ValueError: if a record does not have the cell of a claim.
    """
    ours = list[str]()
    sections = list[str]()
    commands = dict[str, str]()
    for folder, (title, claims) in PAPERS.items():
        stale = stale_reasons(records / folder)
        decided = list[Decided]()
        for claim in claims:
            result = _read(records, claim.record)
            commands[claim.record] = result.command
            decided.append(decide(claim, result))
        ours += [_line(one, stale) for one in decided if one.claim.ours]
        theirs = [one for one in decided if not one.claim.ours]
        rows = [_line(one, stale) for one in theirs]
        sections += [f"## {title}", _summary(theirs), _table(rows), _not_run(records / folder)]
    parts = [
        "# Results: what was confirmed",
        _intro(records, out),
        *_READING,
        glossary(),
        "## What no paper reports",
        _table(ours),
        *(f"![{text}]({path})" for path, text in _FIGURES.items()),
        *sections,
        _run_again(records),
        _commands(commands),
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    return out


def _intro(records: Path, out: Path) -> str:
    return (
        f"Generated from records by `python -m saddlepoint.papers.results_index {records} {out}`; "
        "no number is typed by hand."
    )


def _commands(commands: Mapping[str, str]) -> str:
    listed = "\n".join(f"- {record}: `{command}`" for record, command in commands.items())
    return f"## Commands\n\n{_RERUN}\n\n{listed}"


def _run_again(records: Path) -> str:
    """The comparison of records that were picked at random with a second run; empty: none."""
    file = records / "reruns.json"
    if not file.is_file():
        return ""
    found = json.loads(file.read_text(encoding="utf-8"))
    rows = [
        f"| {name} | {row['made by']} | {row['numbers']} | {row['equal']} | "
        f"{row['largest difference']:g} |"
        for name, row in found["records"].items()
    ]
    picked = count_of(len(rows), len(found["candidates"]), "record")
    return "\n".join(
        [
            "## Records that were run again",
            "",
            f"{picked}, picked at random among the short ones by `{found['command']}` at commit "
            f"{found['commit']}: all numbers and "
            "intervals of their tables are compared.",
            "",
            "| record | made by commit | numbers | equal | largest difference |",
            "| --- | --- | ---: | ---: | ---: |",
            *rows,
        ]
    )


def _read(records: Path, name: str) -> Result:
    file = records / f"{name}.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"a claim names the record {file}, which does not exist. Run its experiment, or remove "
            "the claim."
        )
    return read(file.read_text(encoding="utf-8"), str(file))


def _line(decided: Decided, stale: Mapping[str, str]) -> str:
    claim = decided.claim
    folder, _, name = claim.record.partition("/")
    verdict = f"**{decided.verdict}**" + (f": {decided.reason}" if decided.reason else "")
    remarks = [*decided.flags, *(["stale record"] if name in stale else []), *decided.quotes]
    cells = (
        claim.claim,
        "; ".join([verdict, *remarks]),
        _numbers(decided),
        " and ".join(str(n) for n in decided.images) or "–",
        f"{claim.network}, {claim.data}",
        f"[{claim.record}]({folder}.md)",
    )
    return f"| {' | '.join(cells)} |"


def _numbers(decided: Decided) -> str:
    """The effect with its interval and [the paper's], or the count of exceptions."""
    effect = decided.effect
    if decided.cases:
        return count_of(effect.value, decided.cases, "case")
    sign = "" if decided.claim.is_level else "+"
    shown = f"{effect.value:{sign}.1f} ({effect.low:{sign}.1f} to {effect.high:{sign}.1f})"
    if decided.published is not None:
        shown += f" [{decided.published:{sign}.1f}]"
    return shown


def _table(rows: Sequence[str]) -> str:
    if not rows:
        return ""
    return "\n".join(
        [f"| {' | '.join(_COLUMNS)} |", "| --- | --- | ---: | ---: | --- | --- |", *rows]
    )


def _summary(decided: Sequence[Decided]) -> str:
    counts = [
        f"{sum(one.verdict == verdict for one in decided)} {verdict.value}" for verdict in Verdict
    ]
    return f"{count(len(decided), 'claim')}: {', '.join(counts)}."


def _not_run(folder: Path) -> str:
    """The experiments of a paper that were not run at scale real, with their costs."""
    found = [read(file.read_text(encoding="utf-8"), str(file)) for file in folder.glob("*.json")]
    lines = sorted(f"- {one.experiment}: {one.not_run}" for one in found if one.not_run)
    return "Not run at scale real:\n\n" + "\n".join(lines) if lines else ""


def main() -> None:
    """Write the page that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m saddlepoint.papers.results_index",
        description="Write the page of all claims from records.",
    )
    parser.add_argument("records", type=Path, help="folder with one folder of records per paper")
    parser.add_argument("page", type=Path, help="Markdown file to write")
    arguments = parser.parse_args()
    write_index(arguments.records, arguments.page)


if __name__ == "__main__":
    main()
