"""What comm, parallel and scaling refuse, each in one clear line. What only ranks can refuse: tests/parallel."""

import numpy as np
import pytest
import torch
from torch import nn

from dltutorial.comm.communicator import Communicator
from dltutorial.comm.cost import Counts, counts, fit_regimes
from dltutorial.comm.stopwatch import MeasuredNetwork
from dltutorial.errors import CourseError
from dltutorial.parallel.buckets import make_buckets
from dltutorial.parallel.ddp import NaiveDDP
from dltutorial.scaling import clusters, published


def fill_with_a_sparse_gradient():
    embedding = nn.Embedding(3, 2, sparse=True)
    (bucket,) = make_buckets(embedding.parameters(), 100)
    embedding(torch.tensor([1])).sum().backward()
    bucket.copy_in(embedding.weight)


REFUSALS = [
    ("a communicator outside of a launch", Communicator, ValueError, "process group has not been initialized"),
    ("a collective without formula", lambda: counts("gossip", 2, 8), ValueError, "no formula for 'gossip'"),
    ("too few sizes for two regimes", lambda: fit_regimes([(4, Counts(1), 1.0)]), ValueError, "at least four sizes"),
    (
        "ranks that were not measured",
        lambda: MeasuredNetwork({2: {0: 0.001, 1000: 0.003}}).all_reduce_s(np.array(4), 1),
        CourseError,
        "no all-reduce among 4 ranks was measured; there are: [1, 2]",
    ),
    ("a replica alone", lambda: NaiveDDP(nn.Linear(2, 2)), CourseError, "no process group"),
    ("a sparse gradient in a bucket", fill_with_a_sparse_gradient, CourseError, "sparse=False"),
    ("an unknown cluster", lambda: clusters.load("Titan"), CourseError, "no cluster 'Titan'; choose one of: Piz Daint"),
    ("an unknown run", lambda: published.run("x"), CourseError, "no published run 'x'; choose one of: "),
]


@pytest.mark.parametrize(("call", "error", "words"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_it_is_refused_in_one_line(call, error, words):
    with pytest.raises(error) as refused:
        call()
    (line,) = str(refused.value).splitlines()
    assert words in line
