"""Models in ONNX files, run by onnxruntime as black boxes. Needs the extra `onnx`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saddlepoint.audits.target.admission import TargetError
from saddlepoint.locate import similar_file

_TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}


@dataclass(frozen=True)
class OnnxModel:
    """A callable that runs an ONNX file: no gradients, only attacks with scores.

    A file that was exported with a fixed batch size is run in batches of that size.

    Args:
        path: the file.

    Raises:
        TargetError: there is no such file, it is no ONNX model with one input, or onnxruntime is
            not installed.
    """

    path: str
    sha256: str = field(default="", init=False)  # of the file: another file is another target

    def __post_init__(self) -> None:
        if not Path(self.path).is_file():
            hint = similar_file(Path(self.path))
            raise TargetError(f"there is no ONNX file at {self.path}.{hint}")
        digest = hashlib.sha256(Path(self.path).read_bytes()).hexdigest()
        object.__setattr__(self, "sha256", digest)
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in _TYPES:
            found = ", ".join(f"{one.name}: {one.type}" for one in inputs)
            raise TargetError(
                f"{self.path} must have one input, a batch of images of floating-point numbers; "
                f"found {found}. Export the model with images as its only input."
            )

    @property
    def _session(self) -> Any:
        return _session(self.path, self.sha256)

    def __call__(self, x: Tensor) -> Tensor | Mapping[str, Tensor]:
        """The output of the model, or its outputs by name if it has several."""
        source = self._session.get_inputs()[0]
        images = x.detach().cpu().numpy().astype(_TYPES[source.type])
        size = source.shape[0] if source.shape and isinstance(source.shape[0], int) else len(x)
        parts = [self._run(source.name, images[k : k + size], size) for k in range(0, len(x), size)]
        names = [one.name for one in self._session.get_outputs()]
        whole = [_joined([part[k] for part in parts], x) for k in range(len(names))]
        return whole[0] if len(whole) == 1 else dict(zip(names, whole, strict=True))

    def _run(self, name: str, images: Any, size: int) -> list[Any]:
        """The outputs for at most `size` images; missing rows are filled and removed again."""
        missing = size - len(images)
        filled = np.concatenate([images, images[:1].repeat(missing, 0)]) if missing else images
        return [out[: len(images)] for out in self._session.run(None, {name: filled})]


def _joined(parts: list[Any], x: Tensor) -> Tensor:
    out = torch.from_numpy(np.concatenate(parts)).to(x.device)
    return out.to(x.dtype) if out.is_floating_point() else out


@lru_cache(maxsize=4)
def _session(path: str, sha256: str) -> Any:  # noqa: ARG001
    """The session of a file. It is not part of the model, which can therefore be copied."""
    try:
        import onnxruntime
    except ImportError as error:
        raise TargetError(
            "an ONNX file needs onnxruntime: pip install 'saddlepoint[onnx]'."
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes of its own
        raise TargetError(f"onnxruntime cannot load {path}: {error}") from error
