"""Training on a mesh of ranks is training on one: the same losses, the same weights, fewer bytes."""

import io
import os
import pickle
import re
import shutil
import signal
import time

import meshing
import pytest
import torch
from nursing import EVERY, kill_at_random, wait_for
from same_run import assert_same_run

from dltutorial.errors import CheckpointError
from dltutorial.launch import RankFailed, launch
from dltutorial.train import checkpoint, run_folder
from dltutorial.train.forecasting import make_vit

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
KILLS = int(os.environ.get("DLTUTORIAL_KILLS", 2))
CLIPPED = [{"clip_norm": 0.0}, {}]
SHARDS = [{"shard": kind} for kind in ("optimizer", "gradients", "full")]
STAGES = {"pipeline": 2, "accumulate": 2}
TWO = [{}, *SHARDS, {"tensor": 2}, {"context": 2}, STAGES, {**STAGES, "accumulate": 4}]
FOUR = [
    {"tensor": 4}, {"context": 4}, {"tensor": 2, "context": 2}, {"tensor": 2}, {"context": 2},
    *({"tensor": 2, **how} for how in SHARDS), *({"context": 2, **how} for how in SHARDS),
    STAGES, {**STAGES, "tensor": 2}, {**STAGES, "context": 2}, *({**STAGES, **how} for how in SHARDS),
]  # fmt: skip


@pytest.fixture(scope="module")
def one(data):
    """In one process: without and with gradients scaled down, which hides a constant factor."""
    return launch(meshing.trained, 1, data, CLIPPED)[0]


@pytest.mark.parametrize(("n", "variants"), [(2, TWO), pytest.param(4, FOUR, marks=pytest.mark.ci)])
def test_losses_scores_and_weights_are_those_of_one_process(data, one, n, variants):
    ways = [(clipped | knobs, expected) for knobs in variants for clipped, expected in zip(CLIPPED, one, strict=True)]
    for rank, found in enumerate(launch(meshing.trained, n, data, [knobs for knobs, _ in ways], timeout_s=300)):
        for (knobs, expected), (seen, weights) in zip(ways, found, strict=True):
            for mine, other in zip(seen, expected[0], strict=True):
                assert mine == pytest.approx(other, rel=1e-5), knobs
            assert rank or list(weights) == list(expected[1])
            for name, x in weights.items():
                torch.testing.assert_close(x, expected[1][name], rtol=1e-4, atol=1e-6, msg=f"{knobs} {name}")


@pytest.mark.parametrize("adds", [True, False])
def test_a_torch_that_cannot_average_gradients_in_shards_is_refused(data, adds):
    pytest.importorskip("torch", "2.9")  # older ones have no such switches
    with pytest.raises(RankFailed, match="this torch cannot average gradients in shards here; install") as refused:
        launch(meshing.trained_without_means, 2, data, adds)
    assert refused.value.kind == "CourseError"


MEMORY = {"accumulate": 2, "checkpoint_activations": True}
OTHER_KNOBS = [
    ({"n_lat": 8}, [{"context": 2}], 1e-5),  # 3 tokens
    (MEMORY, [*SHARDS, {"tensor": 2}, {"context": 2}, STAGES], 1e-5),
    ({"optimizer": "adamw", "optimizer_impl": "fused"}, [*SHARDS, {"tensor": 2}, STAGES], 1e-3),
    ({"optimizer": "lamb"}, [{"shard": "optimizer"}, {"context": 2}, STAGES], 1e-3),
    ({"precision": "bf16"}, [*SHARDS, {"tensor": 2}, {"context": 2}, STAGES], 2e-2),
    ({"precision": "fp16"}, [{"shard": "optimizer"}, {"context": 2}], 1e-2),
]


@pytest.mark.ci
@pytest.mark.parametrize(("knobs", "ways", "rounding"), OTHER_KNOBS, ids=[str(row[0]) for row in OTHER_KNOBS])
def test_the_other_knobs_hold_on_a_mesh(data, knobs, ways, rounding):
    (one,) = launch(meshing.trained, 1, data, [knobs])[0]
    for way, (seen, _) in zip(ways, launch(meshing.trained, 2, data, [knobs | way for way in ways])[0], strict=True):
        for mine, other in zip(seen, one[0], strict=True):
            assert mine == pytest.approx(other, rel=rounding), way


def sizes():
    """(numbers in the blocks, numbers in all else, numbers of the largest tensor) of the model."""
    model = make_vit(meshing.MESH)
    blocks = sum(p.numel() for p in model.blocks.parameters())
    everything = [p.numel() for p in model.parameters()]
    return blocks, sum(everything) - blocks, max(everything)


@pytest.mark.parametrize(
    ("shard", "forward", "weights", "gradients", "averages"),
    [("none", 1, 1, 1, 1), ("optimizer", 1, 1, 1, 2), ("gradients", 1, 2, 2, 2), ("full", 2, 2, 2, 2)],
)
def test_a_rank_holds_what_the_formulas_say(data, shard, forward, weights, gradients, averages):
    """The divisors are those of chapter 17. ``ZeroRedundancyOptimizer`` deals out whole tensors."""
    blocks, rest, largest = sizes()
    P = blocks + rest
    expected = {
        "forward": blocks / forward + rest,
        "weights": P / weights,
        "gradients": P / gradients,
        "averages": 2 * P / averages,
    }
    found = launch(meshing.held, 2, data, {"shard": shard})
    for what, numbers in expected.items():
        assert sum(rank[what] for rank in found) == 2 * numbers, what
        assert all(abs(rank[what] - numbers) <= 2 * largest * (shard == "optimizer") for rank in found), what


def test_with_tensor_a_rank_holds_its_part_of_the_matrices(data):
    blocks, rest, _ = sizes()
    dim, depth = meshing.MESH.dim, meshing.MESH.depth
    whole = depth * 6 * dim + rest  # norms, and biases of what is summed
    for found in launch(meshing.held, 2, data, {"tensor": 2}):
        assert found["weights"] == whole + (blocks + rest - whole) / 2
        assert found["averages"] == 2 * found["gradients"] == 2 * found["weights"]


def test_a_stage_holds_its_blocks_and_an_end_of_the_model(data):
    blocks, rest, _ = sizes()
    first, last = launch(meshing.held, 2, data, STAGES)
    assert first["weights"] + last["weights"] == blocks + rest
    ends = sum(p.numel() for name, p in make_vit(meshing.MESH).named_parameters() if re.match("embed|position", name))
    assert first["weights"] == blocks / 2 + ends
    for found in (first, last):
        assert found["averages"] == 2 * found["gradients"] == 2 * found["weights"]


# Stopped and gone on with


def go(data, folder, n, knobs, end_at=None, resume=True):
    return launch(meshing.trained_on, n, data, folder, knobs, end_at=end_at, resume=resume, timeout_s=300)[0]


def assert_same_end(one, other):
    one, other = (torch.load(folder / "weights.pt", weights_only=True) for folder in (one, other))
    assert list(one) == list(other)
    for name, x in one.items():
        assert type(other[name]) is torch.Tensor
        torch.testing.assert_close(other[name], x, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def unbroken(data, tmp_path_factory):
    """The folder of a run in one process, and its losses."""
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    return folder, {step: loss for step, loss, _ in go(data, folder, 1, {}, resume=False)[0]}


CHAINS = [
    [(2, {"shard": "full"}), (1, {}), (2, {"shard": "optimizer"}), (2, {"tensor": 2}), (2, {"shard": "gradients"})],
    [(1, {"shard": "full"}), (2, {"shard": "full"}), (2, {"context": 2})],
    [(2, STAGES), (1, {}), (2, {**STAGES, "accumulate": 4})],
]
LONG_CHAINS = [
    [(2, {"shard": "full"}), (4, {"shard": "full"}), (1, {}), (4, {"tensor": 2, "shard": "full"}), (2, {"tensor": 2})],
    [
        (4, {"tensor": 2, "shard": "optimizer"}),
        (4, {"tensor": 4}),
        (4, {"tensor": 2, "shard": "gradients"}),
        (4, {"tensor": 2, "context": 2}),
        (4, {"context": 2, "shard": "full"}),
    ],
    [
        (4, {**STAGES, "shard": "full"}),
        (4, {**STAGES, "tensor": 2}),
        (4, {**STAGES, "shard": "optimizer"}),
        (2, STAGES),
        (4, {**STAGES, "context": 2}),
    ],
]


@pytest.mark.parametrize("chain", [*CHAINS, *(pytest.param(chain, marks=pytest.mark.ci) for chain in LONG_CHAINS)])
def test_a_run_goes_on_with_another_mesh_other_shards_and_another_number_of_ranks(data, unbroken, tmp_path, chain):
    losses = {}
    for number, (n, knobs) in enumerate(chain):
        last = number == len(chain) - 1
        seen, ending = go(data, tmp_path / "r", n, knobs, None if last else 2, resume=number > 0)
        assert ending == "finished" if last else ending.startswith("asked to end")
        losses |= {step: loss for step, loss, _ in seen}
    assert list(losses) == list(unbroken[1])
    assert list(losses.values()) == pytest.approx(list(unbroken[1].values()), rel=1e-4)
    assert_same_end(unbroken[0], tmp_path / "r")


def test_shards_that_are_not_equal_are_put_together_too(data, tmp_path):
    """Of 3 ranks: 32 and 128 rows are not equal shards."""
    knobs = {"global_batch_size": 6}
    go(data, tmp_path / "whole", 1, knobs, resume=False)
    go(data, tmp_path / "r", 3, knobs | {"shard": "full"}, 3, resume=False)
    go(data, tmp_path / "r", 1, knobs, 3)
    go(data, tmp_path / "r", 3, knobs | {"shard": "gradients"})
    assert_same_end(tmp_path / "whole", tmp_path / "r")


def test_a_checkpoint_of_the_version_before_shards_is_gone_on_from(data, unbroken, tmp_path):
    go(data, tmp_path / "r", 1, {}, 6, resume=False)
    foreign(tmp_path / "r" / "checkpoints", lambda fields: (fields.pop("shards"), fields["recipe"].pop("tensor")))
    seen, _ = go(data, tmp_path / "r", 2, {"shard": "full"})
    assert seen[0][0] == 7
    assert_same_end(unbroken[0], tmp_path / "r")


# Checkpoints in shards


@pytest.fixture(scope="module")
def kept(data, tmp_path_factory):
    """A run of 2 ranks that has ended after 6 updates, and has checkpoints of 4 and 6."""
    folder = tmp_path_factory.mktemp("runs") / "kept"
    go(data, folder, 2, {"shard": "full", "checkpoint_every": 2}, 5, resume=False)
    return folder


@pytest.fixture
def stopped(kept, tmp_path):
    return shutil.copytree(kept, tmp_path / "stopped")


def shards_of(folder, step):
    return sorted((folder / "checkpoints").glob(f"step-{step:08d}-*.shard"))


def test_each_rank_writes_its_file_and_rank_0_what_belongs_together(kept):
    names = sorted(re.sub("-[0-9a-f]{16}", "", file.name) for file in (kept / "checkpoints").iterdir())
    assert names == [
        *("step-00000004.pt", "step-00000004.shard", "step-00000004.shard"),
        *("step-00000006.pt", "step-00000006.shard", "step-00000006.shard"),
    ]
    whole = checkpoint.newest(kept / "checkpoints")
    assert whole.step == 6
    assert {name: x.shape for name, x in whole.model.items()} == {
        name: x.shape for name, x in make_vit(meshing.MESH).state_dict().items()
    }
    (record,) = (kept / "checkpoints").glob("step-00000006-*.pt")
    fields = torch.load(record, weights_only=True)
    assert fields["model"] == fields["optimizer"] == {}
    first, second = (file.stat().st_size for file in shards_of(kept, 6))
    assert max(first, second) < 2 * min(first, second)


def cut(file):
    file.write_bytes(file.read_bytes()[:-100])


def flipped(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flipped, lambda file: file.unlink(), lambda file: file.write_bytes(b"")])
def test_a_checkpoint_of_which_a_shard_is_damaged_or_gone_is_passed_over(stopped, capsys, damage):
    file = shards_of(stopped, 6)[1]
    damage(file)
    assert checkpoint.newest(stopped / "checkpoints").step == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("passed over: ")
    assert file.name in line
    assert ("cut or changed" if file.exists() else "which is not there") in line


def test_and_the_run_goes_on_from_the_one_before(data, stopped, unbroken):
    shards_of(stopped, 6)[0].unlink()
    seen, ending = go(data, stopped, 2, {"shard": "full"})
    assert (seen[0][0], ending) == (5, "finished")
    assert_same_end(unbroken[0], stopped)


def test_a_shard_that_may_not_be_read_is_no_damage(stopped):
    file = shards_of(stopped, 6)[0]
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"):
        checkpoint.newest(stopped / "checkpoints")


def test_old_shards_go_with_their_checkpoint_and_those_without_one(data, stopped):
    checkpoints = stopped / "checkpoints"
    lost = checkpoints / f"step-00000005-{'0' * 16}.shard"  # of a kill
    aside = checkpoints / f"step-00000003-{'0' * 16}.shard"
    others = checkpoints / "mine.shard"
    for file in (lost, aside, others, checkpoints / f"step-00000003-{'1' * 16}.pt.damaged"):
        file.write_bytes(b"")
    go(data, stopped, 2, {"shard": "gradients", "checkpoint_every": 2})
    left = {file.name.split("-")[1] for file in checkpoints.glob("step-*.shard")}
    assert left == {"00000003", "00000010", "00000012"}
    assert all(len(shards_of(stopped, step)) == 2 for step in (10, 12))
    assert others.exists()
    go(data, stopped, 1, {})
    assert not lost.exists()


def test_shards_in_folders_that_rank_0_does_not_see_are_one_line(data, tmp_path):
    with pytest.raises(RankFailed, match="rank 0 does not see what others write") as failed:
        launch(meshing.trained_apart, 2, data, tmp_path / "r", {"shard": "full", "checkpoint_every": 2})
    assert failed.value.kind == "CheckpointError"
    assert not list(tmp_path.rglob("step-*.pt"))


def test_a_shard_does_not_bring_back_a_folder_that_was_moved_away(data, tmp_path):
    with pytest.raises(RankFailed, match=r"r was moved away, or is another by now; this run ends"):
        launch(meshing.trained_and_moved, 2, data, tmp_path / "r", {"shard": "full", "checkpoint_every": 2})
    assert not (tmp_path / "r").exists()
    whole = [file for file in tmp_path.rglob("step-*") if file.suffix != ".shard"]  # rank 0 may have written its own
    assert {file.name.split("-")[1] for file in whole} == {"00000002"}


def test_ranks_of_runs_with_different_names_are_refused(data, tmp_path):
    with pytest.raises(RankFailed, match="rank 1 has another run name than rank 0; start all ranks alike"):
        launch(meshing.named_apart, 2, data, tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_of_one_rank_is_one_line_of_that_rank_and_nobody_waits(data, tmp_path):
    with pytest.raises(RankFailed, match=r"make room for|raise this shell") as failed:
        launch(meshing.trained_without_room, 2, data, tmp_path / "r", {"shard": "full", "checkpoint_every": 2})
    assert (failed.value.rank, failed.value.kind) == (1, "CheckpointError")
    assert not list(tmp_path.rglob("step-*.pt"))


def test_a_run_in_shards_can_be_overwritten(data, stopped):
    launch(meshing.trained_on, 1, data, stopped, {}, overwrite=True)
    assert not list(stopped.rglob("*.shard"))
    assert run_folder.run_status(stopped) == "finished"


class Harm:
    """Unpickled, it leaves a file."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


def put(content, folder, kind):
    """A file named by its digest, as a rank would have written it."""
    packed = io.BytesIO()
    torch.save(content, packed)
    digest = checkpoint._digest(packed.getvalue())
    file = folder / f"step-00000006-{digest}.{kind}"
    file.write_bytes(packed.getvalue())
    return digest


def foreign(folder, change):
    """Change the newest checkpoint as somebody could who knows how digests are made."""
    (record,) = folder.glob("step-00000006-*.pt")
    fields = torch.load(record, weights_only=True)
    change(fields)
    record.unlink()
    put(fields, folder, "pt")


def test_nothing_in_a_shard_is_executed(stopped, tmp_path):
    folder, harm = stopped / "checkpoints", tmp_path / "harm"
    for harmful in ({"model": Harm(harm)}, Harm(harm), {"model": {}, "optimizer": {"state": {0: Harm(harm)}}}):
        digest = put(harmful, folder, "shard")
        foreign(folder, lambda fields, digest=digest: fields["shards"].__setitem__(1, digest))
        with pytest.raises(CheckpointError, match="more than tensors and plain values"):
            checkpoint.newest(folder)
    assert not harm.exists()


def test_metadata_of_torchs_distributed_checkpoint_are_not_even_read(stopped, tmp_path):
    for folder in (stopped, stopped / "checkpoints"):
        (folder / ".metadata").write_bytes(pickle.dumps(Harm(tmp_path / "harm")))
    assert checkpoint.newest(stopped / "checkpoints").step == 6
    assert not (tmp_path / "harm").exists()


WRONG = [
    ("another folder's file", lambda fields: fields.update(shards=["../../../etc/passwd", "0" * 16])),
    ("only one of two", lambda fields: fields["shards"].pop()),
    ("other pieces", lambda fields: fields["recipe"].update(tensor=2)),
    ("many pieces", lambda fields: fields["recipe"].update(tensor=2**40)),
    ("no number of pieces", lambda fields: fields["recipe"].update(tensor="two")),
]


@pytest.mark.parametrize("change", [row[1] for row in WRONG], ids=[row[0] for row in WRONG])
def test_shards_that_do_not_belong_together_are_one_line(data, stopped, change):
    foreign(stopped / "checkpoints", change)
    before = {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()}
    with pytest.raises(RankFailed) as failed:
        go(data, stopped, 1, {})
    assert failed.value.kind == "CheckpointError"
    assert "\n" not in failed.value.message
    assert before == {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()}


HARMFUL = [("NaN", torch.full((3, 3), torch.nan)), ("an expanded tensor", torch.zeros(1).expand(2**40))]


@pytest.mark.parametrize("x", [row[1] for row in HARMFUL], ids=[row[0] for row in HARMFUL])
def test_numbers_that_are_no_runs_are_refused(stopped, x):
    digest = put({"model": {"head.weight": (None, 0, x)}, "optimizer": {"state": {}}}, stopped / "checkpoints", "shard")
    foreign(stopped / "checkpoints", lambda fields: fields.update(shards=[digest] * 2))
    with pytest.raises(CheckpointError, match="no run's"):
        checkpoint.newest(stopped / "checkpoints")


# Killed

FULL = ("--shard", "full")
FILE = 12  # steps of writing one file: see the nursery
SAVE = 2 * FILE + 1
NAMED_AT = FILE + 10  # the step before which a checkpoint has not yet its name


@pytest.fixture(scope="module")
def whole(nursery, data):
    """A run on two ranks that was never stopped, and how long it took with slow writing."""
    start = time.perf_counter()
    assert nursery.train_ranks(2, "whole", data, *FULL, trouble=["slow"]) == [0, 0], nursery.said_by(0).read_text()
    return nursery.run("whole"), time.perf_counter() - start


@pytest.mark.ci
@pytest.mark.parametrize("at", [4, 10, 11, 12, 16, 22, 23, 24, 25, 26, 27, 28])
def test_rank_0_killed_at_each_step_of_writing_leaves_a_whole_checkpoint(nursery, data, whole, at):
    """The third checkpoint, so that there are old files to remove."""
    name = f"killed-{at}"
    ends = nursery.train_ranks(2, name, data, *FULL, trouble=[["kill", 2 * SAVE + at]])
    assert ends == [-signal.SIGKILL, 1], nursery.said_by(1).read_text()
    left = checkpoint.newest(nursery.run(name) / "checkpoints")
    assert left.step == (2 if at <= NAMED_AT else 3) * EVERY
    assert nursery.train_ranks(2, name, data, *FULL) == [0, 0], nursery.said_by(0).read_text()
    assert_same_run(whole[0], nursery.run(name))
    assert len(list((nursery.run(name) / "checkpoints").iterdir())) == 6


@pytest.mark.ci
@pytest.mark.parametrize("at", [4, 10, 12])
def test_another_rank_killed_while_it_writes_leaves_the_checkpoint_before(nursery, data, whole, at):
    name = f"other-{at}"
    trouble = [["kill", 2 * (FILE + 1) + at]]
    ends = nursery.train_ranks(2, name, data, *FULL, trouble=trouble, victim=1)
    assert ends == [1, -signal.SIGKILL], nursery.said_by(0).read_text()
    assert checkpoint.newest(nursery.run(name) / "checkpoints").step == 2 * EVERY
    assert nursery.train_ranks(2, name, data, *FULL) == [0, 0], nursery.said_by(0).read_text()
    assert_same_run(whole[0], nursery.run(name))


@pytest.mark.ci
def test_killed_at_random_moments_it_ends_with_the_same_weights(nursery, data, whole):
    whole, life_s = whole

    def finish(number):
        assert_same_run(whole, nursery.run(f"random-{number}"))

    def start(number):
        return nursery.start_ranks(2, f"random-{number}", data, *FULL, trouble=["slow"])

    number = list(kill_at_random(start, nursery.wait, finish, life_s, KILLS))[-1]
    assert nursery.train_ranks(2, f"random-{number}", data, *FULL) == [0, 0], nursery.said_by(0).read_text()
    finish(number)


KNOBS = [
    ("--tensor", "2"),
    ("--context", "2"),
    FULL,
    ("--shard", "optimizer"),
    ("--pipeline", "2", "--accumulate", "2", "--depth", "2"),
]


@pytest.mark.ci
@pytest.mark.parametrize("knobs", KNOBS)
def test_a_rank_that_is_killed_leaves_nobody_waiting(nursery, data, knobs):
    name = f"lost{knobs[0]}{knobs[1]}"
    pids = nursery.start_ranks(4, name, data, "--global-batch-size", 8, "--steps", 10_000, *knobs)
    wait_for((nursery.run(name) / "checkpoints").exists, nursery.said_by(0))
    os.kill(pids[3], signal.SIGKILL)
    statuses = [nursery.wait(pid) for pid in pids]
    assert statuses == [1, 1, 1, -signal.SIGKILL]
    for rank in range(3):
        (line,) = [line for line in nursery.said_by(rank).read_text().splitlines() if line.startswith("dltutorial:")]
        assert "another rank" in line
