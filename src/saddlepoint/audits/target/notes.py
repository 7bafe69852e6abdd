"""What the audit says about outputs that it converted."""

from __future__ import annotations

from torch import Tensor

from saddlepoint.audits.target.outside import all_tensors
from saddlepoint.audits.verdict import Level, Symptom, SymptomName


def selected_note(out: object, key: str | int) -> Symptom:
    """Logits were selected from an output with several values."""
    where = f"`{key}`" if isinstance(key, str) else f"value {key}"
    return _note(f"the model returns {type(out).__name__}; {where} of it is used as logits.")


def binary_note(out: Tensor) -> Symptom:
    """One number per image was converted to logits of two classes."""
    return _note(
        f"outputs have shape {['N', *out.shape[1:]]}: they are read as logits of class 1 against "
        "class 0, which changes no class.".replace("'", "")
    )


def finite_note() -> Symptom:
    """Negative infinity was replaced."""
    return _note(
        "some logits are negative infinity, such as the logarithm of 0. They are put below the "
        "lowest finite logit of the same image, which changes no class."
    )


def converted_note(out: object) -> Symptom:
    """Integers or 8-bit numbers were converted."""
    kinds = sorted({str(one.dtype).removeprefix("torch.") for one in all_tensors(out)})
    return _note(
        f"outputs are {' and '.join(kinds)}; integers and 8-bit numbers are converted to the type "
        "of the images, which changes no class."
    )


def array_note(out: object) -> Symptom:
    """Outputs that are no tensors were converted."""
    return _note(f"the callable returns {type(out).__name__}, which is converted to a tensor.")


def _note(text: str) -> Symptom:
    return Symptom(SymptomName.SELECTED_LOGITS, Level.NOTE, text)
