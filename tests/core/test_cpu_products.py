"""Products by oneDNN have the values and gradients of torch's own."""

import copy

import psutil
import pytest
import torch
from torch import nn

from calopd.core.cpu_products import AVAILABLE, add_outer_product, product, use_cpu_products

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="this processor or build of torch has no oneDNN")


def strided(rows: int, columns: int, *, transposed: bool) -> torch.Tensor:
    return torch.randn(columns, rows).T if transposed else torch.randn(rows, columns)


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("tokens", [1, 63, 64, 256, 700, 1_731])
@pytest.mark.parametrize("weight", [(128, 300), (5, 7), (1, 20_000)])
def test_products_are_those_of_float64(tokens, weight, transposed):
    torch.manual_seed(0)
    k, n = weight
    a, b = strided(tokens, k, transposed=transposed[0]), strided(k, n, transposed=transposed[1])
    exact = a.double() @ b.double()
    torch.testing.assert_close(product(a, b).double(), exact, rtol=1e-5, atol=1e-4)
    given = torch.empty(tokens, n)
    torch.testing.assert_close(product(a, b, given).double(), exact, rtol=1e-5, atol=1e-4)
    c, total = strided(tokens, n, transposed=transposed[1]), torch.ones(k, n)
    add_outer_product(total, a, c)
    torch.testing.assert_close(total.double(), a.double().T @ c.double() + 1, rtol=1e-5, atol=1e-3)


def test_bad_values_are_not_hidden():
    a, b = torch.randn(300, 128), torch.randn(128, 300)
    a[7, 3] = torch.nan
    out = product(a, b)
    assert out[7].isnan().all()
    assert out.isnan().sum() == 300


def test_memory_does_not_grow_with_the_number_of_lengths():
    """oneDNN keeps what it compiles for a shape: about half a megabyte, for each of a thousand shapes."""
    process, b = psutil.Process(), torch.randn(64, 256)
    for tokens in (512, 256, 128, 64):
        product(torch.ones(tokens, 64), b)
    before = process.memory_info().rss
    for tokens in range(100, 900):
        product(torch.ones(tokens, 64), b)
    assert process.memory_info().rss - before < 64 * 2**20


@pytest.mark.parametrize("tokens", [640, 3])
@pytest.mark.parametrize("frozen", [False, True])
def test_linear_layers_have_the_same_outputs_and_gradients(tokens, frozen):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(96, 192, bias=False), nn.SiLU(), nn.Linear(192, 96), nn.Linear(96, 96, bias=False))
    plain[0].requires_grad_(not frozen)
    fast = copy.deepcopy(plain)
    use_cpu_products(fast)
    found = []
    for model in (plain, copy.deepcopy(fast)):
        x = torch.linspace(-1, 1, tokens * 96).view(1, tokens, 96).requires_grad_()
        out = model(x)
        out.square().sum().backward()
        found.append([out, x.grad, *(p.grad for p in model.parameters() if p.requires_grad)])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert (plain[0].weight.grad is None) == frozen


def test_other_types_and_graphs_stay_with_torch():
    layer = nn.Linear(512, 512, bias=False).bfloat16()
    use_cpu_products(layer)
    x = torch.randn(64, 512, dtype=torch.bfloat16)
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight))
