"""Copies of the tensors that autograd saves for a backward pass."""

from __future__ import annotations

from torch import Tensor


class SavedCopies:
    """Copies of saved tensors: code written for no_grad overwrites tensors that a gradient needs.

    A constant that is saved by many operations is copied once per state of its memory.
    """

    def __init__(self) -> None:
        # With the constant itself: a freed address is used again.
        self._copies: dict[object, tuple[Tensor, Tensor]] = {}

    def __call__(self, saved: Tensor) -> Tensor:
        """The copy of a tensor, or a weight itself."""
        if saved.requires_grad or saved.is_inference():
            is_weight = saved.requires_grad and saved.is_leaf
            return saved.detach() if is_weight else saved.detach().clone()
        layout = (saved.data_ptr(), saved.shape, saved.stride(), saved.dtype)
        key = (*layout, saved._version)
        if key not in self._copies:
            self._copies[key] = (saved, saved.detach().clone())
        return self._copies[key][1]
