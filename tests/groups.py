"""Tests that share something dear, such as a JupyterLab or a Slurm cluster, stay on one worker: ``xdist_group``.

With ``--dist loadgroup`` pytest-xdist ends a test's id in ``@group`` and deals out by that. Up to 3.8 it does so by
setting ``_nodeid``, in which pytest from 9.2 on no longer looks: without this plugin groups are dealt out test by test.
"""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the id that pytest-xdist has made to the pytest that has not seen it."""
    for item in items:
        if (with_group := vars(item).get("_nodeid", item.nodeid)) != item.nodeid:
            item._id = type(item.id).parse(with_group)
