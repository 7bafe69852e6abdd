"""Files with absurd content are errors in one sentence that names file and field."""

from __future__ import annotations

import json

import pytest
from tests.cli.commands import error_of

from saddlepoint.reading import ReadError, check, json_object, read_bytes
from saddlepoint.runs.ray import VersionMismatchError, check_versions
from saddlepoint.runs.records import EventFields, RunFields
from saddlepoint.runs.spec import SpecError, parse_radius, read
from saddlepoint.runs.store import versions


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"target = 'caf\xe9.py:make'", "is not UTF-8"),
        (b"target = 'net.py:make'\nthreads = 100000", "a number of at most 1024"),
        (b"target = 'net.py:make'\n[threat]\neps = '1e300'", "at most 1000000"),
        (b"a = " + 3000 * b"{a = " + b"1" + 3000 * b"}", "nested too deeply"),
        (b"[" + b".".join([b"a"] * 3000) + b"]", "nested too deeply"),
        (b"target = 3", "target"),
    ],
)
def test_a_specification_that_is_none_is_explained(tmp_path, content, message):
    path = tmp_path / "spec.toml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        read(path)
    assert message in error_of("run", path)


@pytest.mark.parametrize("text", ["1e300", "inf", "nan", "-1", "1/0", "1e400/1", "x", "8/255/3"])
def test_a_radius_beyond_all_images_is_refused(text):
    with pytest.raises(
        SpecError, match=r"the radius must (be a number or a fraction|be at most|not be negative)"
    ):
        parse_radius(text)


def test_the_error_names_file_field_expected_and_found():
    values = {"event": "cell", "time": "noon"}
    with pytest.raises(ReadError, match=r'ledger, field time: expected .*number, found "noon"'):
        check(values, EventFields, "ledger")
    with pytest.raises(ReadError, match=r"run.json, field spec: expected a value, found none"):
        check({}, RunFields, "run.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "expected text in UTF-8"),
        (b"[1]", "expected a JSON object"),
        (b"{", "expected JSON"),
        (b'{"a": ' * 200 + b"1" + b"}" * 200, "at most 100 nested levels"),
        (b"[" * 100_000, "at most 100 nested levels"),
    ],
)
def test_text_that_is_no_json_object_is_explained(content, message):
    with pytest.raises(ReadError, match=message):
        json_object(content, "here")


def test_links_folders_and_large_files_are_not_read(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_bytes(tmp_path / "file") == b"12345"
    for name, message in (("link", "a link"), (".", "a folder or a device")):
        with pytest.raises(ReadError, match=message):
            read_bytes(tmp_path / name)
    with pytest.raises(ReadError, match="at most 4 bytes, found 5 bytes"):
        read_bytes(tmp_path / "file", 4)


def test_long_values_are_shortened_and_control_characters_escaped():
    with pytest.raises(ReadError) as error:
        check({"event": "\x1b" * 1000, "time": 0}, EventFields, "ledger")
    assert "\x1b" not in str(error.value)
    assert len(str(error.value)) < 300


def test_a_ray_worker_with_another_version_is_refused():
    check_versions(versions())
    with pytest.raises(VersionMismatchError, match=r"instead of 9.9. Install the same versions"):
        check_versions({**versions(), "torch": "9.9"})


def test_events_that_are_no_events_are_left_out(tmp_path):
    from saddlepoint.runs.store import Store

    good = {"event": "cell", "time": 1.0, "key": 64 * "a", "seconds": 2.0}
    lines = [good, 3, [], {"event": 3}, {**good, "seconds": "x"}, {**good, "time": 1e300}]
    text = "\n".join(json.dumps(line) for line in lines)
    (tmp_path / "ledger.jsonl").write_text(f"{text}\n{{torn")
    assert list(Store(tmp_path).events()) == [good]
