"""Triton's kernels on the CPU, number by number, by Triton's own interpreter.

It rounds towards zero where a GPU rounds to nearest, so tests with it compute in fp32; those on a GPU do not need it.
"""

from __future__ import annotations

import pytest
import torch


def interpret_kernels() -> None:
    """Skip the module where kernels cannot be interpreted; `tests/conftest.py` says that they shall be."""
    if torch.cuda.is_available():
        pytest.skip("a GPU runs the kernels themselves", allow_module_level=True)
    pytest.importorskip("triton", reason="Triton is not installed")
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_index(tensor: object, scope: object) -> None:
        """A number that a kernel loads has a shape of (1,), which numpy no longer takes for an index."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))  # type: ignore[attr-defined]

    interpreter._patch_lang_tensor = patch_and_index
