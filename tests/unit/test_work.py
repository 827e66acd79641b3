import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dltutorial.profile import work
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.probes import Figure


def peaks(flop_per_s=1e9, bytes_per_s=1e9):
    figures = (Figure(value, value, "", "") for value in (flop_per_s, bytes_per_s))
    return Peaks("a machine", "cpu", "2026-01-01T00:00:00+00:00", {"fp32": next(figures)}, next(figures), {})


def test_a_matrix_product_has_two_flop_for_each_triple_and_moves_three_matrices():
    a, b = torch.ones(8, 16), torch.ones(16, 4)
    (product,) = work.count(lambda: a @ b).operators
    assert product.flop == 2 * 8 * 16 * 4
    assert product.n_bytes == 4 * (8 * 16 + 16 * 4 + 8 * 4)


def test_a_view_moves_nothing_and_an_expanded_operand_only_what_lies_in_memory():
    a, b = torch.ones(100, 50), torch.ones(50)
    assert [op.n_bytes for op in work.count(lambda: a.t().reshape(50, 100)[2:].add(1)).operators] == [4 * 2 * 4800]
    (added,) = work.count(lambda: a + b.expand(100, 50)).operators
    assert added.n_bytes == 4 * (5000 + 50 + 5000)


def test_the_backward_pass_counts_twice_the_forward_one():
    layer, x = nn.Linear(32, 16, bias=False), torch.ones(4, 32, requires_grad=True)
    forward = work.count(lambda: layer(x)).flop
    assert forward == 2 * 4 * 32 * 16
    assert work.count(lambda: layer(x).sum().backward()).flop == 3 * forward


def test_attention_counts_its_two_products_on_a_cpu_too():
    q = torch.ones(2, 4, 16, 8, requires_grad=True)
    forward = work.count(lambda: F.scaled_dot_product_attention(q, q, q)).flop
    assert forward == 2 * (2 * 2 * 4 * 16 * 16 * 8)
    assert work.count(lambda: F.scaled_dot_product_attention(q, q, q).sum().backward()).flop > 3 * forward


def test_the_roofline_gives_each_operator_to_its_limit():
    result = work.Work((work.Operator("mm", 4e9, 1e9), work.Operator("add", 0, 3e9)))
    assert result.roof_s(peaks()) == pytest.approx((4, 3))
    assert result.roof_s(peaks(flop_per_s=1e12))[0] == 0
    assert (result.flop, result.n_bytes) == (4e9, 4e9)
