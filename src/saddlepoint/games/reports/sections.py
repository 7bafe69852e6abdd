"""The sections of the report on a game, in order."""

from __future__ import annotations

import json
from collections.abc import Callable

import tomli_w
import torch

from saddlepoint.audits.statistics import wilson
from saddlepoint.defenses import subset_name
from saddlepoint.evaluation.bootstrap import Estimate
from saddlepoint.games.reports.heatmap import Matrix, heatmap
from saddlepoint.games.runs.record import Exposed, GameRecord, Played, best_pure, shown, support
from saddlepoint.reports.amounts import Amount, amounts
from saddlepoint.reports.context import Part
from saddlepoint.reports.document import between, facts, folded, key, percent, quiet, table
from saddlepoint.reports.figures import Bar, bars
from saddlepoint.reports.markup import tag
from saddlepoint.reports.sections.findings import symptom_list

GameSection = Callable[[GameRecord], Part | None]
_MOST = 128  # columns that are drawn; beyond that those of the mixes and the best pure ones


def symptoms(record: GameRecord) -> Part:
    """What speaks against the numbers comes before them."""
    none = "No symptom was met. That cannot rule out an attack that was not tried."
    return Part("What speaks against the numbers", symptom_list(record.symptoms, none))


def numbers(record: GameRecord) -> Part:
    """The value, the gain, and what is left of both."""
    need = record.strategy("NEED")
    gain = record.value.value - record.pure_value
    cards = (
        (
            "value of the restricted game",
            percent(record.value.value),
            f"{_between(record.value)}, on the game's own images",
        ),
        (
            "gain over the best pure answer",
            f"{100 * gain:+.1f} points",
            f"which is {subset_name(record.pure)}, on the same images",
        ),
        ("NEED under AIMER", percent(need.aimer.value), f"{_between(need.aimer)}, on other images"),
        (
            "NEED, attacked per image",
            percent(need.per_image.value),
            f"{_between(need.per_image)}, on other images",
        ),
    )
    drawn = (
        tag(
            "div",
            tag("span", name),
            tag("b", value),
            tag("span", text, class_="quiet"),
            class_="card",
        )
        for name, value, text in cards
    )
    return Part("The numbers", (tag("div", *drawn, class_="numbers"),))


def payoff(record: GameRecord) -> Part:
    """The matrix with the equilibrium on its margins."""
    columns = list(range(len(record.subsets)))
    if len(columns) > _MOST:
        columns = sorted(
            list(dict.fromkeys([*support(record.equilibrium.mix), *best_pure(record)]))[:_MOST]
        )
    left_out = len(record.subsets) - len(columns)
    shares = record.payoff[:, columns]
    marked = frozenset(
        (a, k)
        for a, target in enumerate(record.targets)
        for k, d in enumerate(columns)
        if target == record.subsets[d]
    )
    matrix = Matrix(
        shares.tolist(), [row.name for row in record.rows], [record.columns[d] for d in columns], record.attacker,
        [record.equilibrium.mix[d] for d in columns], marked,
    )  # fmt: skip
    told = (
        f"Accuracy on the {record.built_on} images of the game when the attacker aims at the exits of a row and the defender "
        "answers with the mean logits of the exits of a column; the darker, the more accurate, by rank. A frame marks the cell "
        f"whose row attacks exactly the exits that answer. In {record.beaten} of {record.matched} such columns another row does "
        "more harm than the matched one, against Assumption 3.5 of Xu et al."
    )
    more = (
        [quiet(f"{left_out} columns that nobody should play are left out; game.json has all.")]
        if left_out
        else []
    )
    legend = key(
        kept="how often the defender plays a column", lost="how often the attacker plays a row"
    )
    figure = tag("div", legend, heatmap(matrix, title="Payoff matrix"), class_="card")
    return Part("The game", (figure, quiet(told), *more, facts(_solution(record))))


def _solution(record: GameRecord) -> dict[str, str]:
    rows = [row.name for row in record.rows]
    columns = record.columns
    told = {
        "value": f"{record.value}; duality gap {record.equilibrium.gap:.1e}",
        "NEED's mix": shown(record.equilibrium.mix, columns),
        "attacker's mix": shown(record.attacker, rows),
        "AIMER's best response": shown(record.response, rows),
        "mismatch R_mis": "not defined: a row aims at no set of exits"
        if record.mismatch is None
        else f"{record.mismatch:.3f}",
        "best pure answer": f"{subset_name(record.pure)}, {percent(record.pure_value)}",
        "game per image": f"{percent(record.per_example.value)} by {shown(record.per_example.mix, columns)}; certified to within "
        f"{record.per_example.gap:.1e}",
    }
    if record.exploitability is not None:
        told["exploitability"] = (
            f"{100 * record.exploitability:.2f} points when the double oracle stopped"
        )
    return told


def strategies(record: GameRecord) -> Part:
    """Every strategy under every attacker, on images that did not build the game."""
    head = (
        "strategy",
        "clean",
        "promised",
        "AIMER",
        "95 %",
        "expected loss",
        "95 %",
        "per image",
        "95 %",
    )
    lines = [_line(strategy) for strategy in record.strategies]
    steps = [
        Bar(s.name, s.per_image.value, max(s.aimer.value - s.per_image.value, 0.0), percent(s.per_image.value), s.restricted,
            (s.per_image.low, s.per_image.high))
        for s in record.strategies
    ]  # fmt: skip
    legend = key(
        kept="left by an attacker who chooses per image",
        lost="what AIMER leaves besides",
        alone="promised",
        whisker="95 %",
    )
    gained = [
        (name, f"{100 * gain.value:+.1f}", f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}")
        for name, gain in _gains(record).items()
    ]
    told = (
        f"On the {record.scored_on} images that did not build the game. “Promised” is the worst row on the images that did. AIMER "
        "sends the game's best response; the expected-loss attack ascends what the mix answers on average; the attacker per image "
        "takes the worst of all attacks for every image. Each is an upper bound for any stronger one. Intervals are bootstrap: "
        "they cover which images were drawn."
    )
    paired = "What NEED gains over the best pure answer on these images, in points, image by image."
    return Part(
        "Strategies under attack",
        (
            tag("div", legend, bars(steps, title="Accuracy under attackers"), class_="card"), quiet(told), table(head, lines),
            quiet(paired), table(("attacker", "gain", "95 %"), gained),
        ),
    )  # fmt: skip


def _line(s: Exposed) -> tuple[str, ...]:
    pairs = [
        cell
        for e in (s.aimer, s.expected_loss, s.per_image)
        for cell in (percent(e.value), between(e.low, e.high))
    ]
    return s.name, percent(s.clean.value), percent(s.restricted), *pairs


def _gains(record: GameRecord) -> dict[str, Estimate]:
    names = {
        "clean": "none",
        "aimer": "AIMER",
        "expected_loss": "expected loss",
        "per_image": "per image",
    }
    return {title: record.gains[name] for name, title in names.items()}


def exits(record: GameRecord) -> Part:
    """Each exit alone, clean and under the attack on all exits."""
    clean = record.exit_accuracy(0)
    attacked = record.exit_accuracy(record.all_exits_row)
    steps = []
    lines = []
    for number, (before, after) in enumerate(zip(clean, attacked, strict=True), start=1):
        low, high = wilson(after, record.scored_on)[:2]
        steps.append(
            Bar(
                f"exit {number}",
                after,
                max(before - after, 0.0),
                percent(after),
                interval=(low, high),
            )
        )
        lines.append((f"exit {number}", percent(before), percent(after), between(low, high)))
    legend = key(
        kept="left by the attack on all exits", lost="taken by it", whisker="95 % interval"
    )
    figure = tag("div", legend, bars(steps, title="Accuracy per exit"), class_="card")
    told = f"Each exit answers alone, on the {record.scored_on} images that did not build the game; one attack for all exits."
    return Part(
        "Accuracy per exit",
        (figure, quiet(told), table(("exit", "clean", "all exits attacked", "95 %"), lines)),
    )


def cost(record: GameRecord) -> Part:
    """Passes by attack."""
    head = (
        "part",
        "attacks",
        "forward, per image",
        "backward, per image",
        "passes in all",
        "clean copies",
        "seconds",
    )
    parts = (
        ("building the game", record.rows, record.built_on),
        ("scoring", record.scored_rows, record.scored_on),
    )
    lines = [_spent(name, rows, count) for name, rows, count in parts]
    total = sum((row.forward + row.backward) * count for _, rows, count in parts for row in rows)
    drawn = [
        Amount(name, sum(row.forward for row in rows), sum(row.backward for row in rows),
               f"{sum(row.forward + row.backward for row in rows):,.0f}")
        for name, rows, _ in parts
    ]  # fmt: skip
    told = (
        f"All together {total:,.0f} passes through the network, {record.seconds:,.1f} seconds by the clock since the game last "
        "went on. A pass gives the logits of all exits, so every column is answered by the same one."
    )
    figure = tag(
        "div",
        key(kept="forward", lost="backward"),
        amounts(drawn, title="Passes per image"),
        class_="card",
    )
    return Part("What it cost", (figure, quiet(told), table(head, lines)))


def _spent(name: str, rows: tuple[Played, ...], count: int) -> tuple[str, ...]:
    forward = sum(row.forward for row in rows)
    backward = sum(row.backward for row in rows)
    return (
        name, str(len(rows)), f"{forward:,.1f}", f"{backward:,.1f}", f"{(forward + backward) * count:,.0f}",
        str(sum(row.copies for row in rows[1 if name == "scoring" else 0 :])), f"{sum(row.seconds for row in rows):,.1f}",
    )  # fmt: skip


def what_was_run(record: GameRecord) -> Part:
    """The facts, and the specification, complete."""
    lines = {
        "target": record.target,
        "threat": record.threat,
        "data": f"{record.data}, {record.built_on} images build the game, the {record.scored_on} after them are scored",
        "game": f"{len(record.rows)} rows by {len(record.columns)} columns over {record.exits} exits, seed {record.seed}",
        "time": f"{record.seconds:.1f} seconds",
        "versions": ", ".join(f"{name} {number}" for name, number in record.versions.items()),
        **{f"SHA-256 of {name}": digest for name, digest in record.hashes.items()},
    }
    spec = {name: value for name, value in record.spec.items() if value is not None}
    spec["data"] = {name: value for name, value in record.spec["data"].items() if value is not None}
    complete = folded("The specification, complete (TOML)", tag("pre", tomli_w.dumps(spec)))
    passed = folded("As it was passed (JSON)", tag("pre", json.dumps(record.passed, indent=1)))
    return Part("What was run", (facts(lines), complete, passed))


def run_again(record: GameRecord) -> Part:
    """The command, and how to look at the outcomes with nothing of ours."""
    plain = "\n".join(
        [
            "import json",
            "from pathlib import Path",
            "",
            "from safetensors.torch import load_file",
            "",
            'record, tensors = json.loads(Path("game.json").read_text()), load_file("game.safetensors")',
            'right = tensors["correct"].double()  # [rows, columns, images of the game]',
            'mix = right.new_tensor(record["equilibrium"]["mix"])',
            'print("value", (right.mean(-1) @ mix).min().item())',
            "worst = (right.transpose(1, 2) @ mix).min(0).values.mean().item()",
            'print("the same mix, worst row per image", worst)',
        ]
    )
    least = torch.einsum(
        "adn,d->an",
        record.correct.double(),
        torch.tensor(record.equilibrium.mix, dtype=torch.float64),
    ).amin(0)
    return Part(
        "Run it again, check it",
        (
            tag("h3", "On the command line"), tag("pre", record.command),
            tag("h3", "Check every point"), tag("pre", "saddlepoint runs verify RUN"),
            tag("h3", "Without this library"), tag("pre", plain),
            quiet(f"Expected: {record.equilibrium.value:.6f} and {float(least.mean()):.6f}."),
        ),
    )  # fmt: skip


def _between(estimate: Estimate) -> str:
    return between(estimate.low, estimate.high)


SECTIONS: tuple[GameSection, ...] = (
    symptoms,
    numbers,
    payoff,
    strategies,
    exits,
    cost,
    what_was_run,
    run_again,
)
