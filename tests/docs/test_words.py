"""The old private vocabulary is gone: each of its words has one replacement from the field.

The tables below are the whole vocabulary. A hit prints the file, the line and the replacement.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "saddlepoint"


@dataclass(frozen=True)
class Word:
    """A word or phrase of text that must not appear, with its replacement."""

    pattern: str  # regular expression; a space matches any white space, `_` counts as a space
    replacement: str
    # Regular expressions of text that contains the word rightly: terms of the field, ordinary
    # English, and keys of records that older versions wrote.
    allowed: tuple[str, ...] = ()


# Words and phrases, matched as whole words in code, comments, messages and pages.
WORDS = (
    Word("coins?", "random keys, randomness, random draw", ("coin-flip",)),
    Word("toss(es|ed|ing)?", "is randomized, is drawn"),
    Word(
        "asks?|asked|asking",
        "queries, is queried, needs, requests",
        ('"asked"', "asked to stop", "asks to stop", "attack ask(s|ed) for"),
    ),
    Word(
        "tells?|told|untold",
        "reports, measured, declared; blind audit",
        ('"untold": "blind-audit"', '"cannot be told":'),
    ),
    Word(
        "stands?|standing|stood",
        "is still classified correctly, is robust, is unbroken",
        ("stands? for", "stand-alone"),
    ),
    Word("fell|fallen", "is misclassified, is broken"),
    Word(
        "falls?",
        "is misclassified, is broken; decreases",
        ("falls? back", "falls? (below|outside)"),
    ),
    Word("fool(s|ed|ing)?", "misclassified"),
    Word("left after|taken by", "robust accuracy, remaining accuracy; broken by"),
    Word(
        "sent|sends?",
        "run, runs",
        ("send (error|header|response|text|file)", r"connection\.send"),
    ),
    Word(
        "wins?|won",
        "succeeds; the strongest attack, the winning attack",
        ("triple[- ]wins",),  # the name of a network
    ),
    Word("prices?|priced", "cost"),
    Word("dear(er|est)?", "expensive"),
    Word("purses?", "query budget"),
    Word("pays?|paid|paying", "costs"),
    Word("climb(s|ed|er|ers|ing)?", "increases the loss, gradient ascent", ("hill[- ]climbing",)),
    Word("rose", "increased", ("poppy rose",)),
    Word(
        r"(loss|objective|value|margin)(es|s)? (\w+ ){0,2}(rises?|rising)|late rise",
        "increases; loss increase",
    ),
    Word(
        "peaks?",
        "point of highest loss",
        ("peak = peak bytes", "peak / 1e3", r"(self|counter)\.peak", "peak (memory|rss|bytes)"),
    ),
    Word(
        "(go|goes|gone|going|led|leads?|leading) around", "replace the backward pass (BPDA), bypass"
    ),
    Word(
        "refus(e|es|ed|ing|al|als)",
        "reject with an error, raise; reject an input",
        ('"refusal"', '"clean, refused"', "connection refused"),
    ),
    Word("mend(s|ed|ing)?", "fix"),
    Word("became|turn(s|ed)? into", "adapted model, adapts to"),
    Word("rehears(e|es|ed|ing|al)", "simulate"),
    Word("learns? (at|from) (test|what)|learn(s|ed) anew", "adapts at test time"),
    Word("whoever|nobody|somebody", "the user, the caller, another process"),
    Word(
        "who|whom",
        "rewrite without a person",
        ("(attackers?|authors?|readers?|users?|people|those|anyone|everyone) who",),
    ),
    Word("kin", "wrapper"),
    Word("guises?|dress(es|ed)?", "wrapper", ('"Dress"',)),
    Word("by heart|in its head", "cached, simulated"),
    Word("holds? so far", "credible", ('"holds so far":',)),
    Word("cannot be told", "inconclusive", ('"cannot be told":',)),
    Word("speaks? (for|against)", "warnings"),
    Word("judged afresh", "re-evaluated with new randomness"),
    Word("""(?<=["'*])does not apply(?=["'*])""", "not applicable"),
    Word("tapes?", "history", ("autograd tape",)),
    Word("labs?", "experiment"),
    Word("honest(ly|y)?", "out of sample", ('"multi-exit/honest":',)),
    Word("spied|spy|shelf", "loss curve; cache"),
    Word(
        "astray|lucky|luck|overheard|heard|hears?", "wrong; by chance; recorded", ("lucky noise",)
    ),
    Word("leaking", "state visible"),
    Word("govern(s|ed)?", "seeded globals"),
    Word("seats?", "view"),
    Word(
        r"\w*(defence|behaviour|neighbour|normalis|optimis|initialis|greyscale)\w*",
        "American spelling",
    ),
)

# Classes of version 0.1, matched as whole identifiers of code, and in quoted code of texts.
CLASSES = {
    "Among": "OnExamples",
    "Around": "AdversaryWrapper",
    "Best": "BestSoFar",
    "Coins": "Keys",
    "Ending": "SolveInfo",
    "FixedCoins": "FixedRandomness",
    "Found": "AttackResult",
    "Goal": "AttackObjective",
    "HandedOver": "Stateless",
    "Known": "TargetFacts",
    "Logarithm": "LogProbabilities",
    "Notes": "SolverStats",
    "Onward": "WarmStart",
    "Pace": "ProgressEstimate (runs), StepSchedule (attacks)",
    "Peak": "MaxLossPoint",
    "Pursuit": "Escalate",
    "Reading": "Evaluation",
    "Retrained": "RetrainedEnsemble",
    "Searched": "WorstCaseOrder",
    "Sign": "Trigger",
    "Size": "Variant",
    "Slope": "ValueAndGradient",
    "Spending": "BudgetSpec",
    "Stand": "FixedPoints",
    "Standing": "SkipMisclassified",
    "Turn": "AttackContext",
    "Unaware": "ValueWithoutGrad",
    "Ungraded": "NoGradient",
    "Way": "Strategy",
    "_Kit": "Composer",
    "_Patient": "Planner",
}

# Classes with the same name and another meaning.
OTHER_MEANING = {"Size": "src/saddlepoint/zoo/deq/mdeq.py"}  # the published sizes of MDEQ

# Functions, methods, fields and constants of version 0.1, by package, matched where something is
# defined. The same words are ordinary names of local variables.
DEFINITIONS = {
    "rng.py": {
        "fold": "fold_in",
        "governed": "seeded_globals",
        "shared": "batch_seed",
        "tosses": "count_draws",
    },
    "solvers": {"settles": "converged"},
    "attacks": {
        "arbitrary": "unbounded",
        "fooled": "misclassified",
        "hardest": "min_over_views",
        "last": "last_view",
        "look": "evaluate, update",
        "offer": "update",
        "peak": "max_loss_point",
    },
    "evaluation": {
        "coins": "randomness",
        "control": "batch_control",
        "leaking": "state_visible",
        "live": "online_queries",
        "rand": "rand_suite",
        "seat": "view",
    },
    "games": {"partial": "partial_attack"},
    "audits": {
        "ascent": "loss_curve",
        "boundary": "fab_steps",
        "chase": "fmn_steps",
        "dear": "expensive",
        "fooled": "misclassified",
        "hunt": "square_schedule",
        "led": "routed",
        "look": "evaluate",
        "route": "branch",
        "routes": "branches",
        "told": "reported",
        "toward": "targeted_steps",
        "way": "branch, strategy",
        "ways": "branches, strategies",
    },
    "runs": {
        "coins": "randomness",
        "control": "controlled_fraction",
        "leaking": "state_visible",
        "live": "online_queries",
        "tidy": "collect_garbage",
    },
}

# Modules and packages of version 0.1, by package; "" is the top level.
MODULES = {
    "": {
        "attack": "attacks",
        "auditing": "audits",
        "coins": "rng",
        "defense": "defenses",
        "game": "games, evaluation",
        "report": "reports",
        "run": "runs",
        "solving": "solvers",
        "train": "training",
    },
    "attacks": {
        "early": "early_stopping",
        "goal": "objective",
        "nearest": "min_norm",
        "plane": "hyperplane",
        "pool": "ensemble",
        "tape": "history",
    },
    "evaluation": {
        "control": "batch_control",
        "live": "online",
        "refusal": "rejection",
        "standard": "suites",
        "watch": "mutation",
    },
    "audits": {
        "answering": "target.answer",
        "ascent": "diagnostics.loss_curve",
        "comparing": "diagnostics.baselines",
        "copies": "target.copy",
        "differences": "probes.gradient_check",
        "guises": "target.wrappers",
        "opened": "target.instrument",
        "price": "planning.choice",
        "purse": "planning.budget",
        "routes": "target.branches",
        "sent": "evaluation.properties",
        "settling": "diagnostics.convergence",
        "spied": "deleted",
        "tried": "remedies.results",
    },
    "runs": {
        "identity": "hashing",
        "kept": "cached_play",
        "pace": "eta",
        "shelf": "cache",
        "tidy": "gc",
    },
    "cli": {"light": "lazy_group", "request": "options", "text": "console"},
    "training": {"craft": "inner_attack", "shown": "multi_exit_view"},
    "papers": {
        "bench": "runner",
        "given": "fixed_points",
        "honest": "out_of_sample",
        "lab": "experiment",
        "untold": "blind_audit",
    },
}

# Files that must contain old names, because they read records of older versions.
MIGRATIONS = (
    "src/saddlepoint/audits/records.py",
    "src/saddlepoint/games/runs/record.py",
    "src/saddlepoint/runs/spec_migration.py",
)


def files_of(part: str) -> list[Path]:
    """The files of a package of the library, of the folder docs, or one page."""
    path = SOURCE / part if (SOURCE / part).exists() else ROOT / part
    if path.is_file():
        return [path]
    found = [file for ending in ("*.py", "*.pyi", "*.md") for file in path.rglob(ending)]
    found = [file for file in found if "_generated" not in file.parts]  # written by `make docs`
    return sorted(file for file in found if str(file.relative_to(ROOT)) not in MIGRATIONS)


PARTS = sorted(
    entry.name for entry in SOURCE.iterdir() if entry.is_dir() or entry.suffix in (".py", ".pyi")
)
PARTS = [part for part in PARTS if files_of(part)]
PARTS += ["docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"]


def _spaced(pattern: str) -> str:
    """A pattern in which a space matches line breaks, and the comment signs after them."""
    return pattern.replace(" ", r"(?:\s+(?:#\s+)?)")


def _blanked(text: str, pattern: str) -> str:
    """The text without matches of a pattern; its line breaks stay."""
    return re.sub(
        _spaced(pattern), lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.IGNORECASE
    )


def word_hits(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, word and replacement of every forbidden word in a text."""
    text = text.replace("_", " ")
    for word in WORDS:
        cleared = text
        for context in word.allowed:
            cleared = _blanked(cleared, context)
        for found in re.finditer(rf"\b(?:{_spaced(word.pattern)})\b", cleared, re.IGNORECASE):
            yield text.count("\n", 0, found.start()) + 1, found[0], word.replacement


def class_hits(text: str, *, code: bool) -> Iterator[tuple[int, str, str]]:
    """Line, name and replacement of every forbidden class.

    Args:
        text: the content of a file.
        code: whether the file is Python; else only code between backticks counts.
    """
    names: list[tuple[int, str]] = []
    if code:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        names = [(token.start[0], token.string) for token in tokens if token.type == tokenize.NAME]
    for quoted in re.finditer(r"```.*?```|`[^`\n]+`", text, re.DOTALL):
        line = text.count("\n", 0, quoted.start()) + 1
        names += [(line, name) for name in re.findall(r"\w+", quoted[0])]
    for line, name in names:
        if name in CLASSES:
            yield line, name, CLASSES[name]


def definition_hits(text: str, names: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    """Line, name and replacement of every forbidden function, method, field or constant.

    Args:
        text: Python code.
        names: replacements by name.
    """
    for node in ast.walk(ast.parse(text)):
        defined: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined = [node.name]
        if isinstance(node, ast.ClassDef | ast.Module):
            defined += [_assigned(statement) for statement in node.body]
        for name in defined:
            if name in names:
                yield getattr(node, "lineno", 1), name, names[name]


def _assigned(statement: ast.stmt) -> str:
    """The name that a statement of a module or class assigns; empty if it assigns none."""
    target: ast.expr | None = None
    if isinstance(statement, ast.AnnAssign):
        target = statement.target
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def module_hits(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and replacement of every dotted name of a module that was renamed."""
    for package, modules in MODULES.items():
        prefix = f"saddlepoint.{package}." if package else "saddlepoint."
        for module, replacement in modules.items():
            for found in re.finditer(rf"\b{re.escape(prefix + module)}\b(?!\()", text):
                yield text.count("\n", 0, found.start()) + 1, found[0], replacement


def hits(file: Path) -> list[str]:
    """All forbidden words of a file, one line each."""
    name = file.relative_to(ROOT)
    text = file.read_text()
    if file.name == "CHANGELOG.md":  # its tables list old names
        text = re.sub(r"^\|.*", "", text, flags=re.MULTILINE)
    code = file.suffix in (".py", ".pyi")
    classes = [hit for hit in class_hits(text, code=code) if OTHER_MEANING.get(hit[1]) != str(name)]
    found = [*word_hits(text), *classes, *module_hits(text)]
    if code and file.is_relative_to(SOURCE):
        package = file.relative_to(SOURCE).parts[0]
        found += definition_hits(text, DEFINITIONS.get(package, {}))
    return [f"{name}:{line}: {word!r} -> {new}" for line, word, new in sorted(set(found))]


@pytest.mark.parametrize("part", PARTS)
def test_no_word_of_the_old_vocabulary_is_left(part: str) -> None:
    found = [hit for file in files_of(part) for hit in hits(file)]
    assert not found, "\n".join([f"{len(found)} hits in {part}:", *found])


def test_no_module_has_an_old_name() -> None:
    found = []
    for package, modules in MODULES.items():
        for module, replacement in modules.items():
            for path in (SOURCE / package / module, SOURCE / package / f"{module}.py"):
                if path.exists() and list(path.rglob("*.py") if path.is_dir() else [path]):
                    found.append(f"{path.relative_to(ROOT)} -> {replacement}")
    assert found == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Rows that have won stop paying.", ["won", "paying"]),
        ("a net that tosses\n    # coins", ["tosses", "coins"]),
        ("attacks go\naround the site", ["go\naround"]),
        ("def was_told(): ...", ["told"]),
        ("peak memory of the backward pass", []),
        ("a fixed-point solver for a reader who knows the field", []),
        ('store.log("asked")', []),
        ("the nearest neighbor, an early exit, a decision boundary", []),
    ],
)
def test_words_are_found_in_any_form_but_not_in_allowed_contexts(
    text: str, expected: list[str]
) -> None:
    assert sorted(word for _, word, _ in word_hits(text)) == sorted(expected)


def test_classes_definitions_and_modules_are_found() -> None:
    code = "def sample(best: Best) -> int: ...\n\n\n# Size matters; see `Turn.rows`.\n"
    assert [hit[1] for hit in class_hits(code, code=True)] == ["Best", "Turn"]
    assert [hit[1] for hit in class_hits("The Best. Use `Best(x)`.", code=False)] == ["Best"]
    fields = "class Oracle:\n    coins: int = 0\n\n    def fold(self):\n        shared = 1\n"
    names = {"coins": "randomness", "fold": "fold_in", "shared": "batch_seed"}
    assert sorted(hit[1] for hit in definition_hits(fields, names)) == ["coins", "fold"]
    assert [hit[1] for hit in module_hits("from saddlepoint.attack.pgd import PGD")] == [
        "saddlepoint.attack"
    ]
