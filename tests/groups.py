"""Tests that share something dear, such as a JupyterLab or a Slurm cluster, stay on one worker: ``xdist_group``.

With ``--dist loadgroup`` pytest-xdist ends a test's id in ``@group`` and deals out by that. Up to 3.8 it does so by
setting ``_nodeid``, in which pytest from 9.2 on no longer looks: without this plugin groups are dealt out test by test.

Every worker begins with one group, then takes what comes next. So the groups of ``FIRST`` run first and side by side,
and none of them waits for a worker that is long busy with another. For that pytest-xdist must leave the order as it is.
"""

import pytest

FIRST = ("slurm", "browser", "chapters")  # the longest first


def pytest_configure(config: pytest.Config) -> None:
    """As ``--no-loadscope-reorder`` does, where pytest-xdist is here and has it."""
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the id that pytest-xdist has made to the pytest that has not seen it; sort groups: first, others, last."""
    for item in items:
        if (with_group := vars(item).get("_nodeid", item.nodeid)) != item.nodeid:
            item._id = type(item.id).parse(with_group)
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    mark = item.get_closest_marker("xdist_group")
    name = (*mark.args, *mark.kwargs.values())[0] if mark else None
    return len(FIRST) + 1 if name == "last" else FIRST.index(name) if name in FIRST else len(FIRST)
