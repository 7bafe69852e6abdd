"""The checks of `saddlepoint runs verify`."""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from saddlepoint.cli.folders import is_game

if TYPE_CHECKING:
    from saddlepoint.audits.verdict import Check, Verification
    from saddlepoint.runs.replay import Replay


def verified(
    run: Path, *, replay: str, check_key: Path | None, export: Path | None = None
) -> Verification:
    """Verify a run in a new process.

    Args:
        run: The folder of an audit or a game.
        replay: How many attack cells are computed again: a number or "all".
        check_key: The public key with which the run must be signed; None: it need not be.
        export: A file that `runs export` wrote, which is compared with the run; None: no file.

    Raises:
        ValueError: `replay` is neither a number nor "all".
    """
    from dataclasses import replace

    from saddlepoint.games.reports.verify import game_checks
    from saddlepoint.reports.verify import audit_checks
    from saddlepoint.runs.verify import verify

    wanted = _replay(replay)
    checks = game_checks if is_game(run) else audit_checks
    found = verify(run, partial(checks, replay=wanted))
    if export is not None:
        found = replace(found, checks=(*found.checks, export_check(run, export)))
    if check_key is None:
        return found
    return replace(found, checks=(_signature(run, check_key), *found.checks))


def _replay(text: str) -> Replay:
    from saddlepoint.runs.replay import Replay

    if text != "all" and not (text.isascii() and text.isdigit() and len(text) < 9):
        raise ValueError(f"--replay must be a whole number or 'all', got {text!r}.")
    return Replay(None if text == "all" else int(text))


def export_check(run: Path, file: Path) -> Check:
    """Whether a file is what `runs export` writes of the run in one of its formats."""
    from saddlepoint.audits.verdict import Check
    from saddlepoint.cli.run_output import all_exports
    from saddlepoint.reading import read_bytes, shown

    name = "export"
    try:
        recorded = read_bytes(file).decode()
        exports = all_exports(run)
    except (ValueError, OSError) as error:
        return Check(name, False, f"{file} cannot be compared: {error}")
    for options, text in exports.items():
        if text == recorded:
            return Check(name, True, f"{file} is `runs export {options}` of this run.")
    # The format of the file is the one with the most lines in common.
    lines = recorded.splitlines(keepends=True)
    nearest = max(exports.values(), key=lambda text: len({*text.splitlines(True)} & {*lines}))
    pairs = enumerate(zip_longest(lines, nearest.splitlines(keepends=True), fillvalue=""), 1)
    number, found, expected = next((k, *pair) for k, pair in pairs if pair[0] != pair[1])
    return Check(
        name,
        False,
        f"{file}, line {number}: recorded {shown(found)}, recomputed {shown(expected)}.",
    )


def _signature(run: Path, key: Path) -> Check:
    from saddlepoint.audits.verdict import Check
    from saddlepoint.runs.signing import SigningError, check_signature

    try:
        return Check(
            "signature", True, f"the manifest was signed with {check_signature(run, key)}."
        )
    except SigningError as error:
        return Check("signature", False, str(error))
