from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)  # results are bit-exact for one thread count, and tests run side by side


@pytest.fixture(autouse=True)
def no_armed_faults() -> object:
    from tintype.train import fault

    yield
    fault.disarm()
    return None
