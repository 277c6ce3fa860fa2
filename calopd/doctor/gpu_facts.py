"""python -m calopd.doctor.gpu_facts [DEVICE]: measure on a GPU what cannot be known without one, and print it as JSON.

It runs in a process of its own, because it initialises CUDA. A fact that cannot be measured is reported as its error.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from calopd.core.lm_head import score_targets
from calopd.models.packing import attend, has_kernel, pack

LENGTHS = (700, 1_900, 64, 1_200)
HEADS, KEY_HEADS, HEAD_SIZE = 8, 2, 128
ROWS, HIDDEN, VOCABULARY = 512, 1_024, 32_768
REPEATS = 10


def device_facts(device: torch.device) -> dict[str, Any]:
    """Name, memory and capability."""
    if device.type != "cuda":
        return {"name": str(device)}
    properties, (free, total) = torch.cuda.get_device_properties(device), torch.cuda.mem_get_info(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "total_gib": round(total / 2**30, 2),
        "free_gib": round(free / 2**30, 2),
        "context_gib": round((total - free) / 2**30, 2),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def packed_attention(device: torch.device) -> dict[str, Any]:
    """Packed attention, forward and backward, against plain attention of each sequence in float32."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    draw = torch.Generator().manual_seed(0)
    packed = pack([np.arange(length) + 7 * i for i, length in enumerate(LENGTHS)], share=False)
    shapes = [(1, heads, sum(LENGTHS), HEAD_SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    q, k, v = (torch.randn(s, generator=draw).to(device, dtype).requires_grad_() for s in shapes)
    out, _ = attend(None, q, k, v, None, packed=packed.to(device))
    out.float().square().sum().backward()
    errors, gradient_errors = [], []
    for rows in packed.rows:
        parts = [t.detach()[:, :, torch.from_numpy(rows).to(device)].float().requires_grad_() for t in (q, k, v)]
        own_q, own_k, own_v = parts
        expected = scaled_dot_product_attention(own_q, own_k, own_v, is_causal=True, enable_gqa=True)
        expected.square().sum().backward()
        own = out[0, torch.from_numpy(rows).to(device)].float()
        errors.append((own - expected[0].transpose(0, 1)).abs().max().item())
        assert q.grad is not None
        assert parts[0].grad is not None
        own_gradient = q.grad[:, :, torch.from_numpy(rows).to(device)].float()
        gradient_errors.append((own_gradient - parts[0].grad).abs().max().item())
    return {
        "kernel": "varlen_attn" if has_kernel(device, dtype, HEAD_SIZE) else "buckets",
        "max_error": max(errors),
        "max_gradient_error": max(gradient_errors),
    }


def head_precision(device: torch.device) -> dict[str, float]:
    """Log-probabilities from bfloat16 weights: our head, and logits rounded to bfloat16, against float64."""
    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(ROWS, HIDDEN, generator=draw).to(torch.bfloat16)
    weight = (torch.randn(VOCABULARY, HIDDEN, generator=draw) * 6 / math.sqrt(HIDDEN)).to(torch.bfloat16)
    targets = torch.randint(VOCABULARY, (ROWS,), generator=draw)
    exact_logits = hidden.double() @ weight.double().T

    def chosen(logits: torch.Tensor) -> torch.Tensor:
        return logits.double().log_softmax(-1).gather(1, targets[:, None])[:, 0]

    exact = chosen(exact_logits)
    own = score_targets(hidden.to(device), weight.to(device), targets.to(device)).logprobs.cpu().double()
    rounded = chosen(exact_logits.to(torch.bfloat16))
    return {
        "mean_error_nats": (own - exact).abs().mean().item(),
        "mean_error_of_bfloat16_logits_nats": (rounded - exact).abs().mean().item(),
    }


def matmul_rate(device: torch.device) -> float:
    """TFLOP/s of a large product in the compute dtype."""
    on_gpu = device.type == "cuda"
    size, dtype = (8_192, torch.bfloat16) if on_gpu else (512, torch.float32)
    a = torch.randn(size, size, device=device).to(dtype)
    return 2 * size**3 / _seconds(device, lambda: a @ a) / 1e12


def copy_rate(device: torch.device) -> float:
    """GB/s from pinned main memory to the device."""
    size = 2**28 if device.type == "cuda" else 2**20
    source = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return size / _seconds(device, lambda: source.to(device, copy=True)) / 1e9


def compiled_kernel(device: torch.device) -> str:
    """Compile a function and load the kernel, which needs a compiler and a temporary folder that allows execution."""
    if device.type != "cuda":
        return "not on a GPU"
    x = torch.arange(64.0, device=device)
    out = torch.compile(lambda x: torch.sin(x) * 2 + 1)(x)
    return "works" if torch.allclose(out, torch.sin(x) * 2 + 1) else "computes wrong values"


def fused_optimizer(device: torch.device) -> str:
    parameter = torch.nn.Parameter(torch.ones(1_000, device=device))
    parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW([parameter], lr=0.1, fused=True).step()
    return "works" if bool((parameter < 1).all()) else "does not change the parameters"


FACTS: dict[str, Callable[[torch.device], Any]] = {
    "device": device_facts,
    "packed_attention": packed_attention,
    "head_precision": head_precision,
    "matmul_tflops": matmul_rate,
    "host_to_device_gb_per_s": copy_rate,
    "compiled_kernel": compiled_kernel,
    "fused_adamw": fused_optimizer,
}


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(REPEATS):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / REPEATS


def measure(device: torch.device) -> dict[str, Any]:
    """All facts; an error of one is itself a fact, and the others follow."""
    found: dict[str, Any] = {}
    for name, fact in FACTS.items():
        try:
            found[name] = fact(device)
        except Exception as error:  # whatever a GPU, driver or library raises is what the report is for
            found[name] = f"error: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return found


if __name__ == "__main__":
    print(json.dumps(measure(torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda"))))
