"""The schema of audit.json, and migrations of records that older versions wrote."""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from typing import Any

from saddlepoint.audits.verdict import enough_tested
from saddlepoint.schema import Migrations

SCHEMA = 8
OLD_SCORES = "refusal"  # name of the tensor of rejection scores before schema 4

# Names of symptoms and checklist items in schema 3 and before, and their present names.
SYMPTOM_NAMES = {
    "the promise does not carry over": "the value does not generalize",
    "the gain is lost to an attacker who chooses per image": (
        "the gain is lost if the attacker chooses per image"
    ),
    "hard choices": "hard branches",
    "knows that it is attacked": "output depends on gradient mode",
    "random answers": "random outputs",
    "remembers": "stateful",
    "adapts at test time": "adaptation not anticipated",
    "still rising": "loss still increasing",
    "incomplete optimisation": "incomplete optimization",
    "falling objective": "oscillating loss",
    "overshot": "overshooting",
    "staircase": "piecewise constant",
    "no fixed point": "solver not converged",
    "gradient not solved for": "backward solve not converged",
}
ITEM_NAMES = {
    "white-box attacks on the full defence": "white-box attacks on the full defense",
    "adaptive attacks are the stronger ones": "adaptive attacks are the strongest",
    "many steps beat one": "iterative attacks beat single-step attacks",
    "black-box attacks find nothing more": "black-box attacks break nothing more",
    "cost of an answer": "cost of a prediction",
}
_CURVE = {"fooled": "misclassified"}  # columns of a loss curve
STATE_NAMES = {"does not apply": "not applicable"}


def _to_4(record: dict[str, Any]) -> dict[str, Any]:
    """Schema 3 had other names, and no structured threat model."""
    rows = []
    for row in record["rows"]:
        curve = {_CURVE.get(name, name): column for name, column in row["ascent"].items()}
        kept = {name: value for name, value in row.items() if name != "ascent"}
        rows.append({**kept, "loss_curve": curve, "minimum_norm": False})
    symptoms = []
    for symptom in record["symptoms"]:
        name = SYMPTOM_NAMES.get(symptom["name"], symptom["name"])
        symptoms.append({**symptom, "name": name})
    checklist = []
    for item in record["checklist"]:
        name = ITEM_NAMES.get(item["name"], item["name"])
        state = STATE_NAMES.get(item["state"], item["state"])
        checklist.append({**item, "name": name, "state": state})
    return {
        **record,
        "rows": rows,
        "symptoms": symptoms,
        "checklist": checklist,
        "threat_description": {},
    }


def _to_5(record: dict[str, Any]) -> dict[str, Any]:
    """Schema 4 had no item that requires enough images, a correct one and a radius above 0."""
    checklist = record["checklist"]
    if not checklist:
        return record
    item = enough_tested(record["n"], record["clean_accuracy"], _radius(record["threat"]))
    return {**record, "checklist": [asdict(item), *checklist]}


def _radius(threat: str) -> float:
    """The radius in the text of a threat model, `Linf radius 8/255, ...`; NaN if it has none."""
    found = re.search(r"radius (\d[\d.]*(?:e[+-]?\d+)?)(?:/(\d+))?", threat)
    return float(found[1]) / float(found[2] or 1) if found else math.nan


MIGRATIONS: Migrations = {
    # Schema 0 did not say where the images are from.
    0: lambda record: {"data": "", "classes": [], "command": "", **record},
    # Schema 1 had no loss curves and no identity of the run.
    1: lambda record: {
        **record,
        "run": "",
        "rows": [{**row, "ascent": {}} for row in record["rows"]],
    },
    # Schema 2 had no checklist: a verdict of that time rests on none, and is inconclusive now.
    2: lambda record: {**record, "checklist": [], "compared": {}, "reasons": []},
    3: _to_4,
    4: _to_5,
    # Schema 5 had no time and passes by stage.
    5: lambda record: {**record, "stages": []},
    # Schema 6 did not say what was recognized, and attacks always ran on the given target.
    6: lambda record: {
        **record,
        "recognized": [],
        "engine": {"form": "plain", "reason": "this version knew no other form"},
    },
    # Schema 7 had no smallest perturbations, a tensor of points.safetensors.
    7: lambda record: record,
}
