"""What `saddlepoint runs` prints and exports."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saddlepoint import phrases
from saddlepoint.cli.console import output, say, table
from saddlepoint.cli.folders import is_game
from saddlepoint.phrases import agree, count_of

if TYPE_CHECKING:
    from saddlepoint.audits import Audit
    from saddlepoint.audits.verdict import Verification
    from saddlepoint.reports.run_folders import CellState, Details, Summary


def print_details(found: Details) -> None:
    """Print everything about a run except its cells and its specification."""
    one = found.summary
    say(
        f"{one.kind}: {one.target}, {one.threat}, {phrases.count(one.examples, 'image')}",
        style="bold",
    )
    say(f"model hash {found.target_sha256[:16]}…")
    verdict, robust, state = state_of(one)
    outcome = f"; {verdict}: {robust}" if one.finished else ""
    say(f"{state}, {count_of(one.done, one.total, 'cell')}{outcome}")
    for cell in found.cells:
        if cell.state == "damaged":
            say(f"{cell.problem} It is computed again when the audit is run again.", style="red")
    if found.foreign:
        say(
            f"{phrases.count(found.foreign, 'more cell')} "
            f"{agree(found.foreign, 'belongs', 'belong')} to other requests in this folder; "
            "`saddlepoint runs gc` removes them."
        )
    for head, timing in (("attack", found.timing), ("diagnostic", found.diagnostics)):
        if timing:
            rows = [[name, f"{seconds:.1f}"] for name, seconds in timing.items()]
            output().print(table((head, "seconds"), rows))
    say("Events", style="bold")
    for event in found.events:
        if event["event"] != "cell":
            say(_event_line(event))


def print_cells(found: Details) -> None:
    """Print the cells of a run as a table."""
    rows = [_cell_row(cell) for cell in found.cells]
    output().print(table(("cell", "attack", "images", "state", "seconds", "bytes"), rows))


def _cell_row(cell: CellState) -> list[str]:
    return [
        cell.key[:12],
        cell.adversary or "–",
        "–".join(map(str, cell.rows)) if cell.rows else "–",
        cell.state,
        f"{cell.seconds:.2f}" if cell.seconds is not None else "–",
        str(cell.bytes),
    ]


def _event_line(event: dict[str, Any]) -> str:
    when = datetime.fromtimestamp(event["time"]).astimezone().isoformat(" ", "seconds")
    omitted = ("time", "pid", "event", "run", "threat")
    about = ", ".join(f"{name} {value}" for name, value in event.items() if name not in omitted)
    return f"{when}  {event['event']}  {about}"


def print_verification(found: Verification, *, replayed: bool) -> None:
    """Print all checks of a run, and whether it agrees with its record.

    Args:
        found: The checks.
        replayed: Whether attack cells were computed again.
    """
    from saddlepoint.runs.verify import VERSION

    for check in found.checks:
        word = "ok"
        if not check.passed:
            word = "UNKNOWN" if check.name == VERSION else "DISAGREES"
        say(f"{word:10}{check.name}: {check.message}", style="" if check.passed else "red")
    failed = {check.name for check in found.checks if not check.passed}
    if not failed:
        if not replayed:
            say(
                "Attacks were not run again: cells could hold points of a weaker attack. "
                "`--replay 5` computes 5 of them again."
            )
        say("The run agrees with its record.", style="bold")
    elif failed == {VERSION}:
        say("Nothing contradicts the record, but not everything could be checked.", style="bold")
    else:
        say("The run does not agree with its record.", style="bold")


def state_of(one: Summary) -> tuple[str, str, str]:
    """Verdict, robust accuracy and progress of a run, as text."""
    if one.problem:
        return "unreadable", "–", "no"
    if one.robust_accuracy is None:
        running = f"running, {phrases.count(one.at_work, 'cell')} being computed"
        return "–", "–", running if one.at_work else "not finished"
    return one.verdict, phrases.at_most(one.robust_accuracy), "finished"


def place_below(one: Summary, folder: Path) -> str:
    """The folder of a run relative to the folder that was listed."""
    path = Path(one.folder)
    return str(path.relative_to(folder)) if path != folder else path.name or str(path)


def file_size(count: int) -> str:
    """A number of bytes as text: `950 bytes`, `1.2 MB`."""
    size = float(count)
    unit = "bytes"
    for larger in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size = size / 1000
        unit = larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def exported(run: Path, format: str, per: str) -> str:  # noqa: A002
    """A finished run as text.

    Args:
        run: The folder of an audit or a game.
        format: csv, json, latex or card.
        per: What a line of a CSV file is: attack or example.

    Raises:
        ValueError: The run is not finished, or a game cannot be written in this format.
    """
    if is_game(run):
        return _exported_game(run, format, per)
    from saddlepoint.audits import Audit

    _check_finished(run)
    return _exported_audit(Audit.load(run), format, per)


def all_exports(run: Path) -> dict[str, str]:
    """Everything that `runs export` writes of a finished run, by options of the command."""
    per_attack = ("csv", "json") if is_game(run) else ("csv", "json", "latex", "card")
    found = {f"--format {one}": exported(run, one, "attack") for one in per_attack}
    if not is_game(run):
        found["--format csv --per example"] = exported(run, "csv", "example")
    return found


def _exported_audit(audit: Audit, format: str, per: str) -> str:  # noqa: A002
    from saddlepoint.reports.export import as_json, attacks_csv, examples_csv, latex, model_card

    if format == "csv":
        return attacks_csv(audit) if per == "attack" else examples_csv(audit)
    return {"json": as_json, "latex": latex, "card": model_card}[format](audit)


def _exported_game(run: Path, format: str, per: str) -> str:  # noqa: A002
    from saddlepoint.games.reports.export import as_json, payoff_csv
    from saddlepoint.games.runs.record import GameRecord

    if per != "attack" or format not in ("csv", "json"):
        raise ValueError(
            f"{run} contains a game, which can be exported with --format csv or json, one line "
            "per attack."
        )
    record = GameRecord.load(run)
    _check_finished(run)
    return payoff_csv(record) if format == "csv" else as_json(record)


def _check_finished(run: Path) -> None:
    """Reject an unfinished run: a record in its folder belongs to an earlier request."""
    from saddlepoint.reports.run_folders import summary
    from saddlepoint.runs.store import Store
    from saddlepoint.runs.unfinished import unfinished

    if not (run / "run.json").is_file():
        return
    found = summary(run)
    if found.problem:
        raise ValueError(found.problem)
    if not found.finished:
        raise unfinished(run, Store(run).run(), found.done)
