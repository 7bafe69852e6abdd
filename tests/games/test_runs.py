"""Saved games: resume, detection of changes, and verification of every point."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save
from tests.runs.runs import TARGETS

from saddlepoint import load_data
from saddlepoint.atomic import sha256_hex
from saddlepoint.attacks.pgd import FGSM
from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits.target.admission import TargetError
from saddlepoint.defenses import MultiExit, exit_name, subset_name
from saddlepoint.evaluation import Direct
from saddlepoint.games.exit_attacks import ATTACKS
from saddlepoint.games.exit_game import columns_of
from saddlepoint.games.matrix import least_per_example, solve
from saddlepoint.games.runs.play import run_game
from saddlepoint.games.runs.prepare import prepare
from saddlepoint.games.runs.record import GameError, GameRecord, format_mix
from saddlepoint.games.runs.verify import checks
from saddlepoint.reports.run_folders import details, summary
from saddlepoint.runs.cache import Interrupted
from saddlepoint.runs.cached_play import cached_play
from saddlepoint.runs.game_spec import GameSpec, game_command
from saddlepoint.runs.gc import collect_garbage
from saddlepoint.runs.replay import NO_REPLAY, Replay
from saddlepoint.runs.spec import SpecError, validate
from saddlepoint.runs.store import PackedCell, Store, identity, sealed
from saddlepoint.runs.targets import resolve

PASSED = {
    "target": f"{TARGETS}:halves",
    "data": {"n": 40},
    "threat": {"eps": "0.2"},
    "attack": "fgsm",
    "split": 0.4,
    "batch_size": 12,
}
SPEC = validate(GameSpec, PASSED)
CELLS = 2 * (1 + 7) + 2 * (1 + 7 + 4)  # 16 and 24 images in two groups each, clean images first


@pytest.fixture(scope="module", autouse=True)
def _few_draws():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saddlepoint.games.runs.play._DRAWS", 8)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    return out, run_game(SPEC, out)


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "run")


def failed(folder, replay=NO_REPLAY) -> dict[str, str]:
    """Failed checks, except that of the manifest, which every change fails."""
    found = checks(Store(folder), replay)
    return {one.name: one.message for one in found if not one.passed and one.name != "manifest"}


def edit(folder, change) -> None:
    """Change the record and give it a correct checksum again."""
    record = json.loads((folder / "game.json").read_text())
    del record["seal"]
    change(record)
    (folder / "game.json").write_bytes(sealed(record))


def test_a_loaded_game_equals_the_saved_one(finished):
    folder, found = finished
    loaded = GameRecord.load(folder)
    assert loaded.record() == found.record()
    assert torch.equal(loaded.correct, found.correct)
    assert (loaded.n, loaded.built_on, loaded.scored_on) == (40, 16, 24)
    assert loaded.correct.shape == (7, 7, 16)
    assert loaded.scored.shape == (1 + 7 + 4, 7, 24)
    assert loaded.passed == json.loads(SPEC.model_dump_json(exclude_unset=True))
    assert loaded.spec["seed"] == 0
    assert loaded.hashes.keys() == {"target", "images"}


def test_every_number_of_the_record_follows_from_its_outcomes(finished):
    _, found = finished
    payoff = found.payoff
    solved = solve(payoff)
    mix = torch.tensor(found.equilibrium.mix, dtype=torch.float64)
    assert found.value.value == found.equilibrium.value == solved.value
    assert float((payoff @ mix).amin()) == pytest.approx(found.equilibrium.value, abs=1e-12)
    assert found.pure_value == float(payoff.amin(0).amax()) <= found.value.value + 1e-12
    assert found.value.low <= found.value.value <= found.value.high
    alone = torch.tensor(found.per_example.mix, dtype=torch.float64)
    assert float(least_per_example(found.correct.double(), alone).mean()) == pytest.approx(
        found.per_example.value, abs=1e-9
    )
    scored = found.scored.double()
    need = found.strategy("NEED")
    assert need.restricted == pytest.approx(found.value.value, abs=1e-12)
    assert need.clean.value == pytest.approx(float(mix @ scored[0].mean(-1)), abs=1e-12)
    assert need.per_image.value == pytest.approx(
        float(torch.einsum("d,adn->an", mix, scored).amin(0).mean()), abs=1e-12
    )
    pure = found.strategy("best pure")
    assert pure.name.endswith(subset_name(found.pure))
    for name in ("clean", "aimer", "expected_loss", "per_image"):
        difference = getattr(need, name).value - getattr(pure, name).value
        assert found.gains[name].value == pytest.approx(difference, abs=1e-12), name
    assert found.exit_accuracy(0)[2] == float(scored[0, found.subsets.index((3,))].mean())
    assert found.scored_rows[found.all_exits_row].target == (1, 2, 3)


def test_strategies_are_evaluated_on_images_that_did_not_build_the_game(finished):
    """The clean outputs of the last exit are those of the images after the first 16, in order."""
    _, found = finished
    x, y = load_data("digits", n=40)
    net, _ = resolve(SPEC.target)
    right = net(x)[2].argmax(1) == y
    column = found.subsets.index((3,))
    assert torch.equal(found.scored[0, column], right[16:])


def test_a_game_that_is_played_again_computes_no_cells_and_gives_the_same_record(run, finished):
    class CountingWatch:
        missing = 0

        def begin(self, work, missing):
            self.missing += len(missing)

        def cell(self, cell, episode): ...
        def say(self, message): ...

    before = json.loads((run / "game.json").read_text())
    tensors = (run / "game.safetensors").read_bytes()
    watch = CountingWatch()
    again = run_game(SPEC, run, watch=watch)
    assert watch.missing == 0
    assert (run / "game.safetensors").read_bytes() == tensors
    assert again.record() == {k: before[k] for k in again.record()}
    assert len(Store(run).run()["cells"]) == CELLS
    assert collect_garbage(run).cells == 0
    Store(run).discard(Store(run).keys()[0])
    assert summary(run).done == CELLS - 1
    assert not summary(run).finished
    run_game(SPEC, run, watch=watch)
    assert watch.missing == 1
    assert (run / "game.safetensors").read_bytes() == tensors


def test_an_interrupted_game_has_no_result_and_can_be_resumed(tmp_path, finished):
    class Stopping:
        count = 0

        def begin(self, work, missing): ...
        def say(self, message): ...
        def cell(self, cell, episode):
            self.count += 1
            if self.count == 20:  # while strategies are evaluated
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="Run the same command to continue"):
        run_game(SPEC, tmp_path, watch=Stopping())
    one = summary(tmp_path)
    assert (one.kind, one.done, one.finished, one.robust_accuracy) == ("game", 20, False, None)
    again = run_game(SPEC, tmp_path)
    assert again.record()["payoff"] == finished[1].record()["payoff"]
    assert again.strategies == finished[1].strategies


def test_the_summary_of_a_finished_game(finished):
    folder, found = finished
    one = summary(folder)
    assert (one.kind, one.target, one.threat, one.examples) == ("game", SPEC.target, "Linf 0.2", 40)
    assert (one.done, one.total, one.finished) == (CELLS, CELLS, True)
    assert one.robust_accuracy == found.strategy("NEED").per_image.value
    assert one.verdict == f"value {100 * found.value.value:.1f} %"
    assert 'attack = "fgsm"' in details(folder).spec


def test_another_game_in_the_same_folder_is_not_mistaken_for_it(run):
    other = run_game(SPEC.model_copy(update={"seed": 1, "attack": "fgsm"}), run)
    assert other.run != SPEC
    assert summary(run).finished
    edit(run, lambda record: record.update(run="another"))
    assert not summary(run).finished
    assert "belongs to another request" in failed(run)["record"]


@pytest.mark.parametrize("damage", ["seal", "tensors", "payoff", "schema", "truncated", "lost"])
def test_a_damaged_or_changed_record_raises_an_error(run, damage):
    path = run / "game.json"
    tensors = run / "game.safetensors"
    if damage == "seal":
        path.write_text(path.read_text().replace('"exits": 3', '"exits": 4'))
    elif damage == "tensors":
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(content)
    elif damage == "payoff":
        edit(run, lambda record: record["payoff"][0].__setitem__(0, 0.123))
    elif damage == "schema":
        edit(run, lambda record: record.update(schema=99))
    elif damage == "truncated":
        path.write_text(path.read_text()[:100])
    else:
        tensors.unlink()
    with pytest.raises(GameError):
        GameRecord.load(run)
    assert "record" in failed(run)


def test_a_folder_without_a_game_raises_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no game\.json"):
        GameRecord.load(tmp_path)


def test_an_unchanged_game_passes_every_check(finished):
    assert failed(finished[0]) == {}
    assert [check.name for check in checks(Store(finished[0]))] == [
        "manifest",
        "cells",
        "target",
        "inside",
        "answers",
        "record",
    ]


def test_verification_finds_a_changed_number_with_a_correct_checksum(run):
    edit(run, lambda record: record["strategies"][0]["per_image"].update(value=0.99))
    assert "strategies" in failed(run)["record"]


def test_verification_finds_changed_outcomes_with_a_correct_hash(run):
    outcomes = load_file(run / "game.safetensors")
    outcomes["scored"] = ~outcomes["scored"]
    content = save(outcomes)
    (run / "game.safetensors").write_bytes(content)
    edit(run, lambda record: record.update(tensors=sha256_hex(content)))
    assert "outcomes" in failed(run)["record"]


def test_verification_evaluates_the_points_of_a_changed_cell_again(run):
    store = Store(run)
    keys = store.keys()
    key = next(key for key in keys if store.record(key)["adversary"] == "fgsm at 3")
    episode = store.get(key)
    record = store.record(key)
    about = {name: record[name] for name in ("group", "rows", "description")}
    flipped = replace(episode, correct=1 - episode.correct)
    store.put(PackedCell.of_episode(key, flipped, about, 0.0))
    wrong = failed(run)
    assert "cells" not in wrong
    assert wrong.keys() == {"answers", "record"}
    far = replace(episode, points=1 - episode.points)
    store.put(PackedCell.of_episode(key, far, about, 0.0))
    assert "inside" in failed(run)


def test_an_honest_game_is_computed_again_with_the_same_bytes(finished):
    *_, few = checks(Store(finished[0]), Replay(5))
    *_, every = checks(Store(finished[0]), Replay(None))
    attacks = CELLS - 4  # two groups of clean images in both parts
    assert few.passed, few.message
    # Five drawn at random, and two whose attacks gained little.
    assert f"7 of {attacks} attack cells were computed again: 7 with the same bytes" in few.message
    assert every.passed, every.message
    assert f"{attacks} with the same bytes. No cell holds results of another" in every.message


def test_a_withheld_attack_of_a_game_is_found_by_computing_cells_again(run):
    """Clean images instead of adversarial points; the record follows from them."""
    store = Store(run)
    records = {key: store.record(key) for key in store.keys()}  # noqa: SIM118
    clean = {
        tuple(r["rows"]): store.get(k) for k, r in records.items() if r["adversary"] == "clean"
    }
    names = ("points", "correct", "chosen", "answered", "margin", "size", "copies")
    for key, record in records.items():
        # The second group of the images that evaluate strategies.
        if record["adversary"] == "fgsm at 3" and tuple(record["rows"]) == (12, 23):
            honest = clean[12, 23]
            harmless = replace(store.get(key), **{name: getattr(honest, name) for name in names})
            about = {name: record[name] for name in ("group", "rows", "description")}
            store.put(PackedCell.of_episode(key, harmless, about, 0.0))
    run_game(SPEC, run)
    assert failed(run) == {}
    message = failed(run, Replay(None))["replay"]
    assert "fgsm at 3 on images 12 to 23" in message
    assert "does not hold the results of this attack" in message


def test_verification_finds_a_changed_target(tmp_path):
    target = tmp_path / "net.py"
    target.write_text(TARGETS.read_text())
    run_game(validate(GameSpec, {**PASSED, "target": f"{target}:halves"}), tmp_path / "run")
    assert failed(tmp_path / "run") == {}
    target.write_text(TARGETS.read_text().replace("4 * (x.flatten", "5 * (x.flatten"))
    wrong = failed(tmp_path / "run")
    assert "is another model" in wrong["target"]
    assert "are not here" in wrong["record"]
    target.unlink()
    assert "cannot be loaded again" in failed(tmp_path / "run")["target"]


def as_written_before_schema_2(folder) -> None:
    """Rewrite request and record of a game with the names of the previous version."""
    path = folder / "run.json"
    run = json.loads(path.read_text())
    for name in ("spec", "passed"):
        run[name] = old_spec(run[name])
    del run["versions"]
    path.write_text(json.dumps({**run, "schema": 1}))

    def change(record):
        record["schema"] = 1
        record["run"] = identity(run)
        record["command"] = "saddlepoint game net.py:make --threat-eps 0.2"
        for name in ("spec", "passed"):
            record[name] = old_spec(record[name])

    edit(folder, change)


def old_spec(spec):
    threat = {"eps" if key == "radius" else key: value for key, value in spec["threat"].items()}
    version = {"schema_version": 1} if "schema_version" in spec else {}
    return {**spec, **version, "threat": threat}


def test_a_game_of_the_previous_version_with_the_same_cells_is_verified(run):
    """Specification and arguments are migrated; the command is not compared."""
    as_written_before_schema_2(run)
    assert GameRecord.load(run).spec["threat"]["radius"] == "0.2"
    assert failed(run) == {}
    edit(run, lambda record: record["passed"].update(seed=5))
    assert "passed" in failed(run)["record"]


def test_a_changed_command_is_found_if_this_version_wrote_the_game(run):
    edit(run, lambda record: record.update(command="saddlepoint game net.py:make"))
    assert "command" in failed(run)["record"]


def test_a_game_of_another_version_with_another_hash_cannot_be_compared(run):
    path = run / "run.json"
    request = json.loads(path.read_text())
    target = {**request["target"], "sha256": "0" * 64}
    changed = {**request, "target": target, "versions": {"saddlepoint": "0.0.9", "torch": "2.0"}}
    path.write_text(json.dumps(changed))
    edit(run, lambda record: record.update(run=identity(changed)))
    wrong = failed(run)
    assert wrong.keys() == {"version"}
    assert wrong["version"].startswith("saddlepoint 0.0.9 and torch 2.0 wrote this run.")


def test_cells_of_a_later_round_have_their_times(tmp_path):
    x, y = load_data("digits", n=8)
    net, _ = resolve(SPEC.target)
    run_adversaries = cached_play(
        MultiExit(net), x, y, threat=Linf(0.1), answers=columns_of(((1,), (2,))), out=tmp_path
    )
    for number in (1, 2):
        [episode] = run_adversaries(
            [Direct(f"fgsm {number}", FGSM(), keep=frozenset([exit_name(number)]))]
        )
        assert episode.seconds > 0


def test_the_specification_accepts_the_names_of_all_attacks():
    assert get_args(GameSpec.model_fields["attack"].annotation) == tuple(ATTACKS)
    with pytest.raises(SpecError, match="Did you mean 'pgd-20'"):
        validate(GameSpec, {**PASSED, "attack": "pgd20"})
    unknown = r"threat\.esp: unknown key\. Did you mean 'eps'\? Known here: norm, radius"
    with pytest.raises(SpecError, match=unknown):
        validate(GameSpec, {**PASSED, "threat": {"esp": "1"}})
    with pytest.raises(SpecError, match="the radius must be a number"):
        validate(GameSpec, {**PASSED, "threat": {"eps": "x"}})


def test_a_game_needs_several_exits_and_images_for_both_parts():
    untrained = {"target": f"{TARGETS}:linear", "allow_unusual": True}
    with pytest.raises(TargetError, match=r"has one output.*attach_exits"):
        prepare(validate(GameSpec, {**PASSED, **untrained}))
    with pytest.raises(SpecError, match="leaves 0 to build the game and 2 to evaluate"):
        prepare(validate(GameSpec, {**PASSED, "data": {"n": 2}, "split": 0.2}))


def test_the_command_contains_what_differs_from_the_defaults():
    spec = validate(
        GameSpec,
        {
            **PASSED,
            "rows": "double-oracle",
            "tolerance": 0.01,
            "device": "cuda:1",
            "data": {"root": "/d"},
        },
    )
    words = game_command(spec).split()
    options = dict(zip(words[3::2], words[4::2], strict=True))
    expected = {
        "--rows": "double-oracle",
        "--tolerance": "0.01",
        "--device": "cuda:1",
        "--root": "/d",
        "--n": "500",
    }
    assert expected.items() <= options.items()


def test_a_mixed_strategy_as_text():
    assert format_mix((0.25, 0.0, 0.75), ("1", "2", "1+2")) == "1+2 75 %, 1 25 %"
