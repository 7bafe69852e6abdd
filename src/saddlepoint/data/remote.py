"""The files that `pull` downloads, with their published checksums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Remote:
    """A file on a server."""

    host: str  # URL of the folder
    name: str  # file name
    checksum: str  # `algorithm:hexadecimal`

    @property
    def archive(self) -> bool:
        """Whether the file has to be unpacked."""
        return self.name.endswith((".tar.gz", ".zip"))


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_SVHN = "http://ufldl.stanford.edu/housenumbers"
_GTSRB = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370"

PULLABLE: Mapping[str, tuple[Remote, ...]] = {
    "mnist": (
        Remote(_MNIST, "train-images-idx3-ubyte.gz", "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        Remote(_MNIST, "train-labels-idx1-ubyte.gz", "md5:d53e105ee54ea40749a09fcbcd1e9432"),
        Remote(_MNIST, "t10k-images-idx3-ubyte.gz", "md5:9fb629c4189551a2d022fa330f9573f3"),
        Remote(_MNIST, "t10k-labels-idx1-ubyte.gz", "md5:ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "fashion-mnist": (
        Remote(_FASHION, "train-images-idx3-ubyte.gz", "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Remote(_FASHION, "train-labels-idx1-ubyte.gz", "md5:25c81989df183df01b3e8a0aad5dffbe"),
        Remote(_FASHION, "t10k-images-idx3-ubyte.gz", "md5:bef4ecab320f06d8554ea6380940ec79"),
        Remote(_FASHION, "t10k-labels-idx1-ubyte.gz", "md5:bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "cifar10": (
        Remote(
            "https://www.cs.toronto.edu/~kriz",
            "cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    "cifar100": (
        Remote(
            "https://www.cs.toronto.edu/~kriz",
            "cifar-100-binary.tar.gz",
            "md5:03b5dce01913d631647c71ecec9e9cb8",
        ),
    ),
    "svhn": (
        Remote(_SVHN, "train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
        Remote(_SVHN, "test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"),
    ),
    "gtsrb": (
        Remote(_GTSRB, "GTSRB_Final_Training_Images.zip", "md5:f33fd80ac59bff73c82d25ab499e03a3"),
        Remote(_GTSRB, "GTSRB_Final_Test_Images.zip", "md5:c7e4e6327067d32654124b0fe9e82185"),
        Remote(_GTSRB, "GTSRB_Final_Test_GT.zip", "md5:fe31e9c9270bbcd7b84b7f21a9d9d9e5"),
    ),
    "tiny-imagenet": (
        Remote(
            "http://cs231n.stanford.edu",
            "tiny-imagenet-200.zip",
            "md5:90528d7ca1a48142e341f4ef8d21d0de",
        ),
    ),
}
