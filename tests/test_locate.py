"""`locate` imports an object named by a string, or explains why there is none."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from saddlepoint.locate import LocateError, locate


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that writes a Python file into the current folder, a temporary one."""
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    yield write
    for name in set(sys.modules) - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_name_in_a_file_is_found(write):
    path = write("model.py", "answer = 42")
    assert locate(f"{path}:answer") == 42
    assert locate("model.py:answer") == 42


def test_a_name_in_an_installed_module_is_found():
    assert locate("pathlib:Path") is Path


def test_a_name_in_a_package_of_the_current_folder_is_found(write):
    write("nets_of_user/__init__.py", "")
    write("nets_of_user/small.py", "width = 8")
    assert locate("nets_of_user.small:width") == 8


def test_a_dotted_name_is_found():
    assert locate("pathlib:Path.cwd")() == Path.cwd()


def test_a_file_can_import_files_of_its_folder(write):
    write("sub/neighbor_of_user.py", "value = 7")
    write("sub/model.py", "from neighbor_of_user import value")
    assert locate("sub/model.py:value") == 7


@pytest.mark.parametrize("text", ["x = 1", "raise RuntimeError('no')"], ids=["succeeds", "raises"])
def test_the_search_path_is_restored(write, text):
    write("model.py", text)
    before = list(sys.path)
    try:
        locate("model.py:x")
    except LocateError:
        assert "raise" in text
    assert sys.path == before


def test_two_files_with_the_same_name_are_different_modules(write):
    write("a/model.py", "x = 'a'")
    write("b/model.py", "x = 'b'")
    assert (locate("a/model.py:x"), locate("b/model.py:x")) == ("a", "b")
    assert "model" not in sys.modules


def test_an_unchanged_file_gives_the_same_class_and_an_edited_file_is_executed_again(write):
    write("model.py", "class Net: pass")
    net = locate("model.py:Net")
    assert locate("model.py:Net") is net
    assert isinstance(net, type)
    assert pickle.loads(pickle.dumps(net)) is net
    write("model.py", "class Net: width = 3")
    assert locate("model.py:Net") is not net


def test_a_dataclass_in_a_file_is_found(write):
    write(
        "model.py",
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass C:\n  a: int",
    )
    assert locate("model.py:C")(3).a == 3


@pytest.mark.parametrize("spec", ["model", "model.py", ":name", "model.py:", ""])
def test_the_error_for_a_malformed_string_shows_the_expected_form(spec):
    with pytest.raises(LocateError, match=r"Expected 'file\.py:name'"):
        locate(spec)


def test_the_error_names_a_missing_file(tmp_path):
    with pytest.raises(LocateError, match=r"no file .*absent\.py"):
        locate(f"{tmp_path}/absent.py:x")


@pytest.mark.parametrize(
    "spec", ["no_such_package:x", "no_such_package.deeper:x", "email.no_such_part:x"]
)
def test_the_error_names_a_missing_module(spec):
    with pytest.raises(LocateError, match=r"There is no module '.*no_such"):
        locate(spec)


def test_a_module_with_a_missing_dependency_is_not_reported_as_missing(write):
    write("needs_of_user.py", "import no_such_thing")
    with pytest.raises(
        LocateError, match=r"Importing needs_of_user raised ModuleNotFoundError.*no_such_thing"
    ):
        locate("needs_of_user:x")


@pytest.mark.parametrize(
    "spec", ["broken_of_user.py:x", "broken_of_user:x"], ids=["file", "module"]
)
def test_the_error_of_a_failed_import_contains_the_cause_and_its_line(write, spec):
    write("broken_of_user.py", "\n1 / 0")
    with pytest.raises(
        LocateError, match=r"ZeroDivisionError: division by zero \(broken_of_user\.py, line 2\)"
    ) as caught:
        locate(spec)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_file_that_raised_is_not_cached_as_imported(write):
    write("model.py", "x = 1\n1 / 0")
    for _ in range(2):
        with pytest.raises(LocateError, match="ZeroDivisionError"):
            locate("model.py:x")


def test_a_script_that_calls_exit_does_not_end_the_process(write):
    write("script.py", "import sys\nsys.exit(3)")
    with pytest.raises(LocateError, match="SystemExit"):
        locate("script.py:x")


def test_a_missing_name_suggests_the_nearest(write):
    write("model.py", "resnet = 1")
    with pytest.raises(LocateError, match=r"'resnt' in model\.py. Did you mean 'resnet'\?"):
        locate("model.py:resnt")


def test_a_missing_name_without_a_near_one_lists_the_public_names(write):
    write("model.py", "alpha = beta = 1")
    with pytest.raises(LocateError, match="It has: alpha, beta"):
        locate("model.py:zzzzz")


def test_a_missing_file_or_module_names_a_similar_file(write, monkeypatch):
    folder = write("nets.py", "").parent
    with pytest.raises(LocateError, match=r"no file .*net\.py\. Did you mean 'nets\.py'\?"):
        locate(f"{folder}/net.py:make")
    monkeypatch.chdir(folder)
    with pytest.raises(LocateError, match=r"There is no module 'mynets'\. Did you mean 'nets\.py'"):
        locate("mynets:make")
    with pytest.raises(LocateError) as error:
        locate(f"{folder}/zzzzzz.py:make")
    assert "Did you mean" not in str(error.value)
