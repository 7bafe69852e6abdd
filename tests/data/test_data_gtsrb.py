"""GTSRB: PPM images listed in tables, or arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.data_formats import ppm_bytes, random_bytes

from saddlepoint.data import DataError, load_data
from saddlepoint.data.ppm import read_ppm

HEADER = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n"


def flat(value: int, height: int = 40, width: int = 30) -> np.ndarray:
    return np.full((height, width, 3), value, np.uint8)


def write_training(folder: Path, classes: int = 3, each: int = 4) -> Path:
    for label in range(classes):
        place = folder / f"{label:05d}"
        place.mkdir(parents=True)
        names = [f"00000_{i:05d}.ppm" for i in range(each)]
        for name in names:
            (place / name).write_bytes(ppm_bytes(flat(10 * label)))
        (place / f"GT-{label:05d}.csv").write_text(
            HEADER + "".join(f"{name};30;40;5;5;25;35;{label}\n" for name in names)
        )
    return folder


def write_test(folder: Path, table: Path) -> None:
    folder.mkdir(parents=True)
    rows = [("00000.ppm", 16), ("00001.ppm", 1)]
    for name, label in rows:
        (folder / name).write_bytes(ppm_bytes(flat(label)))
    (folder / "GT-final_test.test.csv").write_text(HEADER.replace(";ClassId", ""))
    table.write_text(HEADER + "".join(f"{name};30;40;5;5;25;35;{label}\n" for name, label in rows))


@pytest.mark.parametrize(
    "place", ["gtsrb/GTSRB/Final_Training/Images", "GTSRB/Training", "gtsrb/Final_Training/Images"]
)
def test_training_images_have_the_labels_of_their_tables_in_a_shuffled_order(tmp_path, place):
    write_training(tmp_path / place)
    data = load_data("gtsrb", root=tmp_path, split="train")
    assert data.x.shape == (12, 3, 32, 32)
    assert (data.x[:, 0, 0, 0] * 255 / 10).round().tolist() == data.y.tolist()
    assert sorted(data.y.tolist()) == [0] * 4 + [1] * 4 + [2] * 4
    assert data.y.tolist() != sorted(data.y.tolist())
    assert len(data.classes) == 43


@pytest.mark.parametrize("table", ["gtsrb", "gtsrb/GTSRB", "gtsrb/GTSRB/Final_Test/Images"])
def test_test_images_have_the_order_and_labels_of_their_table(tmp_path, table):
    write_test(tmp_path / "gtsrb/GTSRB/Final_Test/Images", tmp_path / table / "GT-final_test.csv")
    data = load_data("gtsrb", root=tmp_path)
    assert data.y.tolist() == [16, 1]
    assert (data.x[:, 1, 3, 3] * 255).round().tolist() == [16, 1]
    assert data.classes[16] == "Vehicles over 3.5 tons prohibited"
    assert data.classes[14] == "Stop"


def test_resizing_a_linear_ramp_keeps_it_linear(tmp_path):
    ramp = np.broadcast_to(np.arange(64, dtype=np.uint8)[None, :, None] * 2, (64, 64, 3))
    write_test(tmp_path / "GTSRB/Final_Test/Images", tmp_path / "GTSRB/GT-final_test.csv")
    (tmp_path / "GTSRB/Final_Test/Images/00000.ppm").write_bytes(ppm_bytes(ramp))
    row = load_data("gtsrb", root=tmp_path, n=1).x[0, 0, 16] * 255
    # Output pixel i is centered on input 2 i + 1/2, where the ramp is 4 i + 1. Pixels at the border
    # lack half of their neighbors.
    expected = [4 * i + 1 for i in range(1, 31)]
    assert row[1:-1].tolist() == pytest.approx(expected, abs=1e-3)


def test_downsampling_averages_the_dropped_pixels(tmp_path):
    stripes = np.zeros((128, 128, 3), np.uint8)
    stripes[:, ::4] = 200
    write_test(tmp_path / "GTSRB/Final_Test/Images", tmp_path / "GTSRB/GT-final_test.csv")
    (tmp_path / "GTSRB/Final_Test/Images/00000.ppm").write_bytes(ppm_bytes(stripes))
    row = load_data("gtsrb", root=tmp_path, n=1).x[0, 0, 16] * 255
    # One column in four is bright, and four columns become one. Without antialiasing the bright
    # columns would lie between the samples.
    assert row[1:-1].tolist() == pytest.approx([50] * 30, abs=1e-3)


@pytest.mark.parametrize(("name", "folder"), [("gtsrb", "gtsrb"), ("gtsrb10", "gtsrb10")])
def test_npz_files_in_a_folder_are_loaded(tmp_path, name, folder):
    (tmp_path / folder).mkdir()
    np.savez(
        tmp_path / folder / "test.npz",
        x=random_bytes(3, 32, 32, 3),
        y=np.array([9, 0, 2], np.uint8),
    )
    data = load_data(name, root=tmp_path)
    assert data.x.shape == (3, 3, 32, 32)
    assert data.classes[9] == "No passing"
    assert len(data.classes) == (10 if name == "gtsrb10" else 43)


def test_pull_is_not_suggested_for_data_that_cannot_be_pulled(tmp_path):
    with pytest.raises(DataError, match=r"and found none\. Specify the folder"):
        load_data("gtsrb10", root=tmp_path)


def test_the_error_names_an_image_that_is_listed_but_missing(tmp_path):
    write_training(tmp_path / "GTSRB/Training")
    (tmp_path / "GTSRB/Training/00001/00000_00002.ppm").unlink()
    with pytest.raises(DataError, match=r"00000_00002\.ppm is listed but missing"):
        load_data("gtsrb", root=tmp_path, split="train")


def test_a_table_without_labels_is_rejected(tmp_path):
    write_test(tmp_path / "GTSRB/Final_Test/Images", tmp_path / "GTSRB/GT-final_test.csv")
    (tmp_path / "GTSRB/GT-final_test.csv").write_text("Filename;Width\n00000.ppm;30\n")
    with pytest.raises(DataError, match="expected columns Filename and ClassId"):
        load_data("gtsrb", root=tmp_path)


def test_an_empty_training_folder_is_rejected(tmp_path):
    (tmp_path / "GTSRB/Training").mkdir(parents=True)
    with pytest.raises(DataError, match="lists no train images"):
        load_data("gtsrb", root=tmp_path, split="train")


@pytest.mark.parametrize("comment", [b"", b"# made by hand\n"])
def test_a_pixmap_is_read_as_written(tmp_path, comment):
    pixels = random_bytes(3, 5, 3)
    pixels[0, 0] = ord("\n")  # a pixel equal to white space is not part of the header
    (tmp_path / "a.ppm").write_bytes(ppm_bytes(pixels, comment))
    assert read_ppm(tmp_path / "a.ppm").tolist() == pixels.tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a binary PPM"),
        (b"P3\n1 1\n255\n0 0 0", "not a binary PPM"),
        (b"P6\n1 1\n65535\n" + bytes(6), "maximum value 65535"),
        (b"P6\n2 2\n255\n" + bytes(11), "= 12 bytes but contains 11"),
        (b"P6\n2 2\n255\n" + bytes(13), "= 12 bytes but contains 13"),
        (b"P6\n0 0\n255\n", "0 x 0 pixels"),
    ],
)
def test_a_damaged_pixmap_is_rejected(tmp_path, content, message):
    (tmp_path / "a.ppm").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_ppm(tmp_path / "a.ppm")
