"""Encoding an image as PNG and decoding it again gives the rounded image."""

from __future__ import annotations

import base64
import struct
import zlib

import pytest
import torch
from tests.reports.audits import an_audit

from saddlepoint.reports.gallery import select_examples
from saddlepoint.reports.png import data_uri, downsampled, drawable, png


def decoded(content: bytes) -> torch.Tensor:
    """Decode a PNG of 8-bit gray or RGB rows without filters to [C, H, W] of 0..255.

    All checksums are verified.
    """
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    chunks = {}
    at = 8
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        kind = content[at + 4 : at + 8]
        body = content[at + 8 : at + 8 + length]
        (checksum,) = struct.unpack(">I", content[at + 8 + length : at + 12 + length])
        assert checksum == zlib.crc32(kind + body)
        chunks[kind] = body
        at = at + 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, color, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, rest) == (8, [0, 0, 0])
    channels = {0: 1, 2: 3}[color]
    rows = torch.tensor(list(zlib.decompress(chunks[b"IDAT"])), dtype=torch.uint8).view(
        height, 1 + width * channels
    )
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels).permute(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_png_decodes_to_the_rounded_image(channels):
    image = torch.rand(channels, 5, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(decoded(png(image)), (image * 255).round().to(torch.uint8))


def test_values_outside_0_to_1_are_clipped():
    assert decoded(png(torch.tensor([[[-1.0, 2.0]]]))).flatten().tolist() == [0, 255]


def test_a_data_uri_contains_the_file():
    image = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0))
    kind, _, content = data_uri(image).partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(content) == png(image)


def test_large_images_are_averaged_over_blocks_and_small_ones_are_unchanged():
    image = torch.rand(3, 224, 100, generator=torch.Generator().manual_seed(0))
    small = downsampled(image)
    assert small.shape == (3, 75, 34)
    torch.testing.assert_close(small[:, 0, 0], image[:, :3, :3].mean((1, 2)))
    assert downsampled(image[:, :96, :96]).shape == (3, 96, 96)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((2, 1, 8, 8), True), ((2, 3, 8, 8), True), ((2, 4, 8, 8), False), ((2, 64), False)],
)
def test_gray_and_color_images_can_be_drawn(shape, expected):
    assert drawable(torch.zeros(shape)) is expected


def test_examples_are_broken_by_an_attack_and_repeat_a_pair_of_classes_last():
    audit = an_audit()
    shown = select_examples(audit, 12)
    assert len(shown) == 12
    assert all(audit.correct[e.row] == 0 and audit.examples.winner[e.row] != "clean" for e in shown)
    assert len({(e.label, e.predicted) for e in shown[:10]}) == 10  # one per class
    assert len({e.row for e in shown}) == 12
