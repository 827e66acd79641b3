import pytest
import torch

from dltutorial.profile.compilation import Compilations, breaks


@pytest.fixture(autouse=True)
def nothing_compiled_yet():
    torch.compiler.reset()


def whole(x):
    return torch.where(x.sum() > 0, x, -x)


def reads_a_number(x):
    y = 2 * x
    scale = y.sum().item()
    return y * scale


def chooses(x):
    y = 2 * x
    if y.sum() > 0:
        y = -y
    return y + 1


def prints(x):
    y = 2 * x
    print("here")
    return y + 1


def test_a_function_without_breaks_has_none():
    assert breaks(whole, torch.ones(3)) == []


@pytest.mark.parametrize(
    ("fn", "code"), [(reads_a_number, ".item()"), (chooses, "if y.sum()"), (prints, 'print("here")')]
)
def test_a_break_tells_its_line_and_why(fn, code):
    (found,) = breaks(fn, torch.ones(3))
    assert code in found.code
    assert found.line == fn.__code__.co_firstlineno + 2
    assert found.reason
    assert "\n" not in found.reason


def test_a_branch_is_called_a_branch():
    assert "branch" in breaks(chooses, torch.ones(3))[0].reason


def test_a_break_warns_of_nothing_else(caplog):
    breaks(reads_a_number, torch.ones(3))
    assert [record for record in caplog.records if record.levelname != "DEBUG"] == []


def count(fn, sizes, **options):
    fast = torch.compile(fn, backend="eager", **options)
    with Compilations() as seen:
        for size in sizes:
            fast(torch.ones(size))
    return seen


def test_calls_alike_are_compiled_once():
    seen = count(whole, [4, 4, 4])
    assert seen.graphs == 1
    assert seen.reasons == ()
    assert seen.seconds > 0


@pytest.mark.parametrize(("dynamic", "graphs"), [(False, 4), (None, 2), (True, 1)])
def test_shapes_are_compiled_one_by_one_or_for_all(dynamic, graphs):
    seen = count(whole, [5, 4, 3, 2], dynamic=dynamic)
    assert seen.graphs == graphs
    if seen.reasons:  # older torch does not tell
        assert "expected 5, actual 4" in seen.reasons[0]


def test_a_break_makes_two_graphs_of_one():
    assert count(prints, [4]).graphs == 2


def test_what_was_compiled_before_does_not_count():
    fast = torch.compile(whole, backend="eager")
    fast(torch.ones(4))
    with Compilations() as seen:
        fast(torch.ones(4))
    assert (seen.graphs, seen.seconds) == (0, 0.0)


def test_backward_passes_count_to_the_seconds_and_nobody_listens_afterwards():
    from torch._dynamo.callback import callback_handler

    before = len(callback_handler.start_callbacks)
    with Compilations():
        torch.compiler.reset()  # drops all listeners
    with Compilations() as seen:
        torch.compile(whole, backend="aot_eager")(torch.ones(3, requires_grad=True)).sum().backward()
    assert seen.seconds > 0
    assert len(callback_handler.start_callbacks) <= before
