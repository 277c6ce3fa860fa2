import pytest
import torch

from calopd.core.head_tiles import objective_shape
from calopd.core.lm_head import ForwardKL, policy_gradient, policy_objective, score_targets
from calopd.core.types import ScoreOptions

T, V, H = 37, 211, 16


@pytest.fixture
def head():
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(T, H, generator=generator) * 3, torch.randn(V, H, generator=generator)
    return hidden, weight, torch.randint(V, (T,), generator=generator)


@pytest.mark.parametrize(("rows", "tile"), [(1, 500), (8, 64), (37, 10), (64, 211), (64, 1)])
@pytest.mark.parametrize(("top_k", "entropy"), [(0, False), (5, False), (0, True), (16, True)])
def test_scores_equal_a_full_log_softmax(head, rows, tile, top_k, entropy):
    hidden, weight, targets = head
    full = (hidden @ weight.T).double().log_softmax(-1)
    scores = score_targets(hidden, weight, targets, ScoreOptions(top_k, entropy), rows=rows, tile=tile)
    assert torch.allclose(scores.logprobs.double(), full[torch.arange(T), targets], atol=2e-5)
    assert (scores.top_ids is None) == (top_k == 0)
    assert (scores.entropy is None) == (not entropy)
    if top_k:
        best = full.topk(top_k)
        assert torch.equal(scores.top_ids, best.indices)
        assert torch.allclose(scores.top_logprobs.double(), best.values, atol=2e-5)
    if entropy:
        assert torch.allclose(scores.entropy.double(), -(full.exp() * full).sum(1), atol=2e-5)


def test_large_logits_do_not_overflow():
    hidden, weight = torch.full((1, 1), 100.0), torch.tensor([[100.0], [0.0], [-100.0]])
    for tile in (1, 2, 3):
        scores = score_targets(hidden, weight, torch.tensor([1]), ScoreOptions(want_entropy=True), tile=tile)
        assert scores.logprobs.item() == -10_000
        assert scores.entropy.item() == 0
        assert score_targets(hidden, weight, torch.tensor([1]), tile=tile).logprobs.item() == -10_000


@pytest.mark.parametrize("shift", [-300.0, -60.0, 60.0, 300.0])
def test_logits_that_are_all_high_or_all_low_lose_nothing(head, shift):
    hidden, weight, targets = head
    lifted = torch.cat((hidden, torch.full((T, 1), shift)), 1), torch.cat((weight, torch.ones(V, 1)), 1)
    lifted[0][::2, -1] = 0
    expected = score_targets(hidden, weight, targets).logprobs
    assert torch.allclose(score_targets(*lifted, targets).logprobs, expected, atol=2e-4)


def test_a_head_gone_bad_is_not_hidden(head):
    hidden, weight, targets = head
    weight = weight.clone()
    weight[3] = float("nan")
    assert score_targets(hidden, weight, targets).logprobs.isnan().all()


def test_bfloat16_products_are_not_rounded(head):
    """A rounded logit of 100 is off by up to .25."""
    hidden, weight, targets = head
    hidden, weight = (hidden * 10).bfloat16(), weight.bfloat16()
    full = (hidden.double() @ weight.double().T).log_softmax(-1)
    scores = score_targets(hidden, weight, targets, ScoreOptions(want_entropy=True), tile=50)
    assert torch.allclose(scores.logprobs.double(), full[torch.arange(T), targets], atol=1e-3)


@pytest.fixture(params=[50, V])
def in_blocks(request, monkeypatch):
    """The learner's head in blocks of some of the vocabulary, and in one block."""

    def shape(vocabulary: int, rows: int, *, on_cuda: bool) -> tuple[int, int]:
        return objective_shape(vocabulary, rows, on_cuda=on_cuda)[0], request.param

    monkeypatch.setattr(policy_gradient, "objective_shape", shape)


@pytest.mark.parametrize("rows", [4, 64])
@pytest.mark.usefixtures("in_blocks")
def test_objective_and_gradient_equal_autograd(head, rows):
    """The advantage reads the log-probability of the same pass and is constant for the gradient."""
    hidden, weight, targets = (tensor.clone() for tensor in head)
    teacher = -torch.rand(T, generator=torch.Generator().manual_seed(1)) * 4

    def coefficients(part: slice, logprobs: torch.Tensor) -> torch.Tensor:
        return -(teacher[part] - logprobs) / T

    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    objective, scores = policy_objective(hidden, weight, targets, coefficients, top_k=4, rows=rows)
    (3 * objective).backward()
    chunked = [leaf.grad.clone() for leaf in leaves]

    # In float64: rounding of a float32 reference would be as large as ours.
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    full = (exact[0] @ exact[1].T).log_softmax(-1)
    own = full[torch.arange(T), targets]
    loss = (-(teacher - own.detach()) / T * own).sum()
    (3 * loss).backward()
    assert objective.item() == pytest.approx(loss.item(), rel=1e-5)
    for ours, leaf in zip(chunked, exact, strict=True):
        assert (ours - leaf.grad).norm() < 1e-5 * leaf.grad.norm()
    assert torch.allclose(scores.entropy.double(), -(full.exp() * full).sum(1), atol=1e-4)
    assert torch.equal(scores.top_ids, full.topk(4).indices)


@pytest.mark.parametrize("shift", [-300.0, -60.0, 60.0, 300.0])
@pytest.mark.usefixtures("in_blocks")
def test_gradients_of_high_and_low_logits_lose_nothing(head, shift):
    """Half of the rows of each chunk, then all of them: a sum of exponentials that leaves float32 is formed again."""
    hidden, weight, targets = head
    lifted = torch.cat((hidden, torch.full((T, 1), shift)), 1), torch.cat((weight, torch.ones(V, 1)), 1)
    lifted[0][:20:2, -1] = 0
    results = []
    for pair in ((hidden, weight), lifted):
        leaves = [tensor.clone().requires_grad_() for tensor in pair]
        objective, scores = policy_objective(leaves[0], leaves[1], targets, lambda part, own: own - 1, rows=8)
        objective.backward()
        results.append((scores.logprobs, scores.entropy, leaves[0].grad[:, :H], leaves[1].grad[:, :H]))
    for plain, moved in zip(*results, strict=True):
        assert torch.allclose(plain, moved, rtol=1e-3, atol=1e-3)


def test_a_learners_head_gone_bad_is_not_hidden(head):
    hidden, weight, targets = head
    weight = weight.clone()
    weight[3] = float("nan")
    _, scores = policy_objective(hidden.requires_grad_(), weight, targets, lambda part, own: own - 1)
    assert scores.logprobs.isnan().all()


@pytest.mark.usefixtures("in_blocks")
def test_forward_kl_is_differentiated_directly(head):
    """Also for a target among the likely tokens, and for rows without weight."""
    hidden, weight, targets = (tensor.clone() for tensor in head)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    ids = torch.cat((targets[:, None], (targets[:, None] + torch.arange(1, 4)) % V), 1)
    q, weights = torch.rand(T, 4).softmax(1), torch.rand(T).where(torch.arange(T) % 3 > 0, 0.0)
    extra = ForwardKL(ids, q, weights)
    objective, scores = policy_objective(hidden, weight, targets, lambda part, own: own - 1, forward_kl=extra, rows=8)
    objective.backward()
    chunked = [leaf.grad.clone() for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None

    full = (hidden @ weight.T).log_softmax(-1)
    own = full[torch.arange(T), targets]
    divergence = (q * (q.log() - full.gather(1, ids))).sum(1)
    ((own.detach() - 1) * own + weights * divergence).sum().backward()
    assert torch.allclose(scores.forward_kl, divergence, atol=1e-4)
    for ours, leaf in zip(chunked, leaves, strict=True):
        assert torch.allclose(ours, leaf.grad, rtol=1e-4, atol=1e-4)


def test_a_cpu_cuts_the_rows_to_a_budget_of_bytes_and_a_gpu_does_not():
    rows, tile = objective_shape(151_936, 1_024, on_cuda=False)
    assert rows == 256, "as many chunks as fit the budget need, all alike"
    assert 4 * rows * (151_936 + tile) < 165 * 2**20
    assert objective_shape(151_936, 1_024, on_cuda=True) == (1_024, 16_384)
    assert objective_shape(1_000, 37, on_cuda=False)[0] == 37


@pytest.mark.parametrize("rows", [8, 64])
def test_the_learners_head_does_not_round_bfloat16_products(head, rows):
    """Log-probabilities and gradients are those of float32 products of the same bfloat16 values."""
    hidden, weight, targets = head
    hidden, weight = (hidden / 2).bfloat16(), weight.bfloat16()  # logits up to 24
    teacher = -torch.rand(T, generator=torch.Generator().manual_seed(1)) * 4

    def formed(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        leaves = [leaf.detach().clone().to(dtype).requires_grad_() for leaf in (hidden, weight)]
        objective, scores = policy_objective(
            leaves[0], leaves[1], targets, lambda part, own: -(teacher[part] - own) / T, top_k=4, rows=rows
        )
        objective.backward()
        return objective, scores.logprobs, scores.entropy, scores.top_logprobs, *(leaf.grad for leaf in leaves)

    *low, low_hidden, low_weight = formed(torch.bfloat16)
    *full, full_hidden, full_weight = formed(torch.float32)
    for one, other in zip(low, full, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-5)
    assert torch.allclose(score_targets(hidden, weight, targets).logprobs, full[1], rtol=0, atol=1e-5)
    # The gradients themselves are bfloat16, as autograd asks of them.
    for one, other in ((low_hidden, full_hidden), (low_weight, full_weight)):
        assert one.dtype == torch.bfloat16
        assert (one.float() - other).norm() < 4e-3 * other.norm()
