"""The accuracy of strategies and of single exits on held-out images."""

from __future__ import annotations

from saddlepoint.audits.statistics import wilson
from saddlepoint.games.runs.record import GameRecord, StrategyRecord, same_strategy
from saddlepoint.phrases import count, signed
from saddlepoint.reports.context import Section
from saddlepoint.reports.document import legend, muted, percent, percent_range, table
from saddlepoint.reports.figures import Bar, bars
from saddlepoint.reports.markup import Markup, tag

_STRATEGY_HEAD = (
    "strategy",
    "clean",
    "in-sample",
    "AIMER",
    "95 % interval",
    "expected loss",
    "95 % interval",
    "per image",
    "95 % interval",
)
_ATTACKERS = {
    "clean": "no attack",
    "aimer": "AIMER",
    "expected_loss": "expected loss",
    "per_image": "per image",
}


def strategies(record: GameRecord) -> Section:
    """Show the accuracy of every strategy under every attacker, on held-out images."""
    explanation = (
        f"Accuracy on the {count(record.scored_on, 'held-out image')}. “In-sample” is the accuracy "
        "under the worst row on the images of the game. AIMER plays the best response of the game. "
        "The expected-loss attack maximizes the expected loss under the mixed strategy. The "
        "attacker per image chooses the worst of all attacks for every image. Each accuracy is an "
        "upper bound. Intervals are bootstrap intervals: they cover which images were drawn."
    )
    return Section(
        "Strategies under attack",
        (
            _strategy_figure(record),
            muted(explanation),
            table(_STRATEGY_HEAD, [_strategy_line(strategy) for strategy in record.strategies]),
            *_gains(record),
        ),
    )


def _strategy_figure(record: GameRecord) -> Markup:
    rows = [
        Bar(
            strategy.name,
            strategy.per_image.value,
            max(strategy.aimer.value - strategy.per_image.value, 0.0),
            percent(strategy.per_image.value),
            marker=strategy.restricted,
            interval=(strategy.per_image.low, strategy.per_image.high),
        )
        for strategy in record.strategies
    ]
    key = legend(
        primary="accuracy under the worst attack per image",
        secondary="additional accuracy under AIMER",
        marker="in-sample accuracy",
        whisker="95 % interval",
    )
    return tag("div", key, bars(rows, title="Accuracy under attack by strategy"), class_="card")


def _strategy_line(strategy: StrategyRecord) -> tuple[str, ...]:
    estimates = (strategy.aimer, strategy.expected_loss, strategy.per_image)
    return (
        strategy.name,
        percent(strategy.clean.value),
        percent(strategy.restricted),
        *(cell for e in estimates for cell in (percent(e.value), percent_range(e.low, e.high))),
    )


def _gains(record: GameRecord) -> tuple[Markup, ...]:
    if same_strategy(record.strategies[0], record.strategies[1]):
        return (muted("NEED is the best pure strategy: there is no gain from mixing."),)
    explanation = (
        "Gain of NEED over the best pure strategy on the same held-out images, in percentage "
        "points, with paired intervals."
    )
    gains = {title: record.gains[name] for name, title in _ATTACKERS.items()}
    lines = [
        (title, signed(gain.value), f"{signed(gain.low)} to {signed(gain.high)}")
        for title, gain in gains.items()
    ]
    return (muted(explanation), table(("attacker", "gain", "95 % interval"), lines))


def exits(record: GameRecord) -> Section:
    """Show the accuracy of each exit alone, clean and under the attack on all exits."""
    clean = record.exit_accuracy(0)
    attacked = record.exit_accuracy(record.all_exits_row)
    rows = []
    lines = []
    for number, (before, after) in enumerate(zip(clean, attacked, strict=True), start=1):
        low, high = wilson(after, record.scored_on)[:2]
        name = f"exit {number}"
        drop = max(before - after, 0.0)
        rows.append(Bar(name, after, drop, percent(after), interval=(low, high)))
        lines.append((name, percent(before), percent(after), percent_range(low, high)))
    key = legend(
        primary="accuracy under the attack on all exits",
        secondary="broken by this attack",
        whisker="95 % interval",
    )
    explanation = (
        f"Accuracy of each exit alone on the {count(record.scored_on, 'held-out image')}. One "
        "attack attacks all exits together."
    )
    head = ("exit", "clean accuracy", "accuracy under attack", "95 % interval")
    figure = tag("div", key, bars(rows, title="Accuracy by exit"), class_="card")
    return Section("Accuracy by exit", (figure, muted(explanation), table(head, lines)))
