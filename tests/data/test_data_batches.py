"""Images and labels in the forms in which people have them give the same tensors."""

from __future__ import annotations

from itertools import repeat

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from saddlepoint.data import DataError, load_data
from saddlepoint.data.batches import collect

BYTES = torch.arange(5 * 2 * 3, dtype=torch.uint8).view(5, 1, 2, 3)
X = BYTES.float() / 255
Y = torch.tensor([0, 1, 2, 1, 0])


class Pictures(Dataset):
    """Pictures of PIL with integer labels, as torchvision's datasets without a transform."""

    def __len__(self):
        return len(BYTES)

    def __getitem__(self, k):
        return Image.fromarray(BYTES[k, 0].numpy()), int(Y[k])


FORMS = {
    "tensors": (X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "float64": (X.double().numpy(), Y.numpy()),
    "bytes": (BYTES.numpy(), Y.numpy()),
    "tensor of bytes": (BYTES, Y),
    "lists": (X.tolist(), Y.tolist()),
    "list of images": (list(X), list(Y)),
    "column of labels": (X, Y[:, None]),
    "pair": ((X, Y),),
    "loader": (DataLoader(TensorDataset(X, Y), batch_size=2),),
    "dataset": (TensorDataset(X, Y),),
    "pictures": (Pictures(),),
    "batches": ([(X[:3].numpy(), Y[:3].numpy()), (X[3:], Y[3:])],),
    "generator": ((batch for batch in [(X[:3], Y[:3]), (X[3:], Y[3:])]),),
    "mappings": (({"pixel_values": X[k : k + 1], "labels": Y[k : k + 1]} for k in range(5)),),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_tensors(form):
    x, y = collect(*FORMS[form])
    assert x.dtype == torch.float32
    assert torch.equal(x, X)
    assert torch.equal(y, Y)


@pytest.mark.parametrize("form", ["tensors", "loader", "dataset", "pictures"])
def test_n_takes_the_first_images(form):
    x, y = collect(*FORMS[form], n=3)
    assert torch.equal(x, X[:3])
    assert torch.equal(y, Y[:3])


def test_a_name_loads_a_data_set():
    x, y = collect("digits", n=7)
    expected = load_data("digits", n=7)
    assert torch.equal(x, expected.x)
    assert torch.equal(collect(expected).y, y)


def test_an_endless_loader_is_read_until_n():
    assert len(collect(repeat((X, Y)), n=12).y) == 12


def test_double_tensors_keep_their_type():
    assert collect(X.double(), Y).x.dtype == torch.float64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X,), "labels are missing"),
        ((iter([(X, Y, Y)]),), r"\(\(batch\[0\], batch\[1\]\) for batch in loader\)"),
        ((iter([{"a": X, "b": Y}]),), r"batch\['A'\]"),
        ((iter([(X[0], 3)]),), "DataLoader"),
        ((iter([X]),), r"Yield \(x, y\)"),
        ((iter([]),), "only once"),
        ((X.long().numpy(), Y), "astype"),
        ((3,), "data loader"),
        (([(X[0], 0), (X[1, :, :1], 1)],), "Resize"),
        (([],), "empty"),
    ],
)
def test_other_data_is_rejected_with_the_code_that_helps(arguments, message):
    with pytest.raises(DataError, match=message):
        collect(*arguments)


def test_more_images_than_there_are_is_an_error():
    with pytest.raises(DataError, match="only 5 images"):
        collect(X, Y, n=6)


def test_a_loader_that_shuffles_is_read_with_a_warning():
    loader = DataLoader(TensorDataset(X, Y), batch_size=2, shuffle=True)
    with pytest.warns(UserWarning, match=r"shuffles.*shuffle=False"):
        found = collect(loader)
    assert sorted(found.y.tolist()) == sorted(Y.tolist())
