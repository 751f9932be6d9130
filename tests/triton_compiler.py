"""Triton's kernels compiled for GPUs that are not there: the interpreter runs what no compiler takes.

`python -m tests.triton_compiler` starts all kernels of a fused block and of AdamW on the CPU, in the types and widths
that training has. In place of a launch each is compiled to machine code, with the arguments of that launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

CAPABILITIES = (80, 86, 90)
"""Compute capabilities times ten: the oldest that the kernels take, one with little shared memory (RTX GPUs, as 8.9
has), and the one that they were measured on."""
SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 90: 227 << 10}
"""Shared memory that a program may have there."""
_TYPES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64", torch.int8: "i8",
    torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5",
}  # fmt: skip
_OPTIONS = ("num_warps", "num_stages")


class Compiled:
    """Compiles what is launched, each kernel once for each set of types, and keeps what it needs."""

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.shared: dict[tuple[str, ...], int] = {}

    def run(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        options = {key: named.pop(key) for key in _OPTIONS if key in named}
        given = dict(zip(kernel.arg_names, args, strict=False)) | named
        signature, constants, hints = {}, {}, {}
        for index, parameter in enumerate(kernel.params):
            value = given[parameter.name]
            signature[parameter.name] = "constexpr" if parameter.is_constexpr else _type(value)
            if signature[parameter.name] == "constexpr":
                constants[parameter.name] = value
            elif (value.data_ptr() if isinstance(value, Tensor) else value) % 16 == 0:
                hints[(index,)] = [["tt.divisibility", 16]]
        key = (str(kernel.__name__), str(signature), str(constants), str(hints), str(options))
        if key not in self.shared:
            source = ASTSource(kernel, signature, constants, hints)
            made = triton.compile(source, target=GPUTarget("cuda", self.capability, 32), options=options)
            self.shared[key] = made.metadata.shared


def _type(value: object) -> str:
    if isinstance(value, Tensor):
        return f"*{_TYPES[value.dtype]}"
    if value is None or (value == 1 and isinstance(value, int)):  # which Triton takes for constants
        return "constexpr"
    return "fp32" if isinstance(value, float) else "i32"


@contextmanager
def compiled_instead(capability: int) -> Iterator[Compiled]:
    """Compile kernels instead of launching them; what they would write stays as it is."""
    from triton.runtime.jit import JITFunction

    found = Compiled(capability)

    def run(kernel: Any, *args: Any, **named: Any) -> None:
        found.run(kernel, *args, **named)

    with patch.object(JITFunction, "run", run):
        yield found


def train_block(fp8: bool, width: int, heads: int, tokens: int) -> None:
    """Run a fused block forward and backward, and its forward pass on cached text."""
    from tintype.model import transformer
    from tintype.model.transformer import Transformer
    from tintype.seams import Route, TextTokens
    from tintype.settings import ModelSettings, PrecisionSettings

    settings = ModelSettings(depth=2, width=width, heads=heads, mlp_ratio=4.0, patch=1)
    model = Transformer(settings, 4, 32, PrecisionSettings(matmul="fp8" if fp8 else "plain"))
    x, t_B = torch.zeros(2, 4, 1, tokens), torch.zeros(2)
    text = TextTokens(torch.zeros(2, 9, 32), torch.ones(2, 9, dtype=torch.bool), (9, 5))
    route = Route(1, 2, torch.arange(tokens // 2).expand(2, -1).contiguous())

    def product(left: Tensor, right: Tensor, *_: Tensor, out_dtype: torch.dtype, **__: object) -> Tensor:
        return torch.zeros(left.shape[0], right.shape[1], dtype=out_dtype)

    with (
        patch.object(transformer, "why_plain", lambda *_: ""),
        patch.object(transformer, "_LONG_FLOPS", 0),
        patch.object(torch, "_scaled_mm", product),
        torch.autocast("cpu", torch.bfloat16),
    ):
        model(x, t_B, text, route=route).prediction_BCHW.sum().backward()
        with torch.no_grad():
            model(x, t_B, model.read_text(text))


def step_optimizer(lengths: int) -> None:
    """Take a step of AdamW in one pass, with copies in bf16 and averages of some lengths."""
    from tintype.optim import adamw
    from tintype.optim.power_ema import PowerEma
    from tintype.runtime.copies import Copy

    weights = {"a": nn.Parameter(torch.ones(40, 16)), "b": nn.Parameter(torch.ones(3))}
    with patch.object(adamw, "runs_kernels", lambda device: True):
        optimizer = adamw.AdamWSettings().build(weights.items())
    assert isinstance(optimizer, adamw.AdamW)
    for weight in weights.values():
        weight.grad = torch.ones_like(weight)
    optimizer.found_inf, optimizer.gradient_factor = torch.zeros(()), torch.ones(())
    if lengths:
        averages = PowerEma((0.05, 0.1)[:lengths], weights)
        optimizer.averaging = averages.begin(optimizer.found_inf)
        optimizer.copies = [Copy(one, torch.empty_like(one, dtype=torch.bfloat16)) for one in weights.values()]
        for copy in optimizer.copies:
            copy.mark_fresh()
    optimizer.step()


def main() -> None:
    from tintype.model.fused import attention

    for capability in CAPABILITIES:
        with compiled_instead(capability) as found:
            for fp8 in (False, True) if capability >= 89 else (False,):
                train_block(fp8, width=1792, heads=28, tokens=64)
                train_block(fp8, width=96, heads=6, tokens=6)
            train_block(fp8=False, width=512, heads=4, tokens=64)
            with patch.object(attention, "LONG", 0):
                train_block(fp8=False, width=1792, heads=28, tokens=64)
                train_block(fp8=False, width=512, heads=4, tokens=64)
                train_block(fp8=False, width=96, heads=6, tokens=6)
            for lengths in range(3):
                step_optimizer(lengths)
        for (name, *_), shared in found.shared.items():
            assert shared <= SHARED_BYTES[capability], f"{name} needs {shared} bytes of shared memory"
        names = sorted({name for name, *_ in found.shared})
        print(capability, len(found.shared), *names)


if __name__ == "__main__":
    main()
