"""Every file that a notebook writes is plain PyTorch: it runs alone in an empty folder, where the course is not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dltutorial import config
from dltutorial.course import notebooks, scripts
from dltutorial.data import weather

ROOT = Path(__file__).parents[2]
NOTEBOOKS = [path for folder in ("notebooks", "solutions") for path in sorted((ROOT / folder).glob("*.ipynb"))]
WRITTEN = {path: files for path in NOTEBOOKS if (files := scripts.written(path))}
PYTHON = {name: text for files in reversed(WRITTEN.values()) for name, text in files.items() if name.endswith(".py")}

# Each file as its chapter runs it, but shorter. DATA: the simulated weather of preset smoke. The first word is a
# program beside this Python. What a command leaves is there for those after it in the same line.
RANKS = "torchrun --standalone --nproc-per-node 2"
FOUR = RANKS.replace("2", "4")
COMMANDS = [
    ["python train.py DATA --epochs 1 --vit 16 32 1 2"],
    ["python graphs.py DATA", "python graph_sizes.py DATA"],
    ["python memory.py 5 16 32 2 8 32 2 2", "python memory.py 5 16 32 2 8 32 2 2 bf16"],
    ["python fast.py DATA --epochs 1 --vit 16 32 1 2 --hold --fused"],
    [f"{RANKS} ddp.py DATA --epochs 1 --vit 16 32 1 2 --pieces 2"],
    ["python profiled.py DATA --trace trace.json --vit 16 32 1 2"],
    ["python products.py"],
    ["python join.py 127.0.0.1:1"],
    [f"{FOUR} slices.py ."],
    ["python checkpoint.py run --steps 20 --every 5", "python checkpoint.py run --steps 20 --every 5"],
    [f"{FOUR} verbs.py"],
    [f"{FOUR} rings.py 1 1"],
    [f"{FOUR} grid.py"],
    [f"{RANKS} bandwidth.py"],
    [f"{RANKS} sums.py 32 256 32 16", f"{RANKS} race.py race15.json 0", f"{RANKS} race.py race15.json 0 1 --alone"],
    [f"{RANKS} laws.py states15.pt --widths 8 12 --steps 2 4 --seeds 0 1 --out forecast15.pt"],
    ["python serve.py forecast15.pt2 states15.pt 2 1 3"],
    [f"{RANKS} unequal.py"],
    [f"{RANKS} capstone.py run --epochs 1", f"{RANKS} capstone.py run --epochs 2"],
    [f"{FOUR} scale.py --sizes 1 2 --steps 3 --late 0.5"],
    [f"{RANKS} noise.py digits13.pt got13.pt"],
    ["python scaled.py lenses12.pt --batch 64 --pieces 4", "python scaled.py lenses12.pt --epochs 1 --warmup 0"],
    ["python layerwise.py lenses14.pt", "python matrixwise.py"],
    [f"{RANKS} post_local.py lenses14.pt"],
    [f"{ranks} fsdp.py DATA --vit 16 32 1 2 --batch 8 --out shards --stop {n}" for ranks, n in ((RANKS, 2), (FOUR, 4))],
    [f"{RANKS} split.py 16 16 2"],
    [f"{RANKS} pipeline.py 16 4"],
    [f"{FOUR} mesh.py 16 2"],
    ["python many.py lenses20.pt 3", "python asha.py 4"],
    [f"{RANKS} rare.py"],
    [f"{RANKS} f1.py"],
    [f"{RANKS} simclr.py galaxies22.pt got22.pt"],
    [f"{RANKS} halo.py halo22.pt"],
    ["python roll.py DATA --lead 2 --updates 2 --batch 2 --vit 16 32 1 2 --out four.pt"],
    ["python invert.py settled23.pt 0.5 0.5 5"],
    [f"{FOUR} server.py digits24.pt got24.pt 0.2"],
    [f"{RANKS} lagged.py digits24.pt late24.pt"],
    [f"{FOUR} actors.py logs24.pt 0.5"],
    [f"{RANKS} suite.py rows25.pt", f"{RANKS} suite.py rows25.pt got25.pt"],
]


def code_cells(path):
    return ["".join(cell["source"]) for cell in notebooks.read(path)["cells"] if cell["cell_type"] == "code"]


X = torch.randn(600, 256, generator=torch.Generator().manual_seed(0))  # what chapters 12 and 14 keep of their lenses
Y = (X.sum(1) > 0).long()


@pytest.fixture(scope="session")
def data():
    return weather.ensure(config.preset("smoke"))


@pytest.fixture
def folder(tmp_path):
    """All written files in one folder, and beside it a module that stands in the course's place and refuses."""
    for name, text in PYTHON.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for name in ("lenses12.pt", "lenses14.pt"):
        torch.save({"x_train": X[:512], "y_train": Y[:512], "x_test": X[512:], "y_test": Y[512:]}, tmp_path / name)
    parts = {"train": slice(0, 400), "valid": slice(400, 500), "test": slice(500, 600)}  # and chapter 20
    torch.save({name: (X[part].clone(), Y[part].clone()) for name, part in parts.items()}, tmp_path / "lenses20.pt")
    race = {
        "file": "race15.pt",
        "target": 0.99,
        "widths": (8, 4),
        "loader": "lean",
        "batch": 64,
        "rate": 0.1,
        "steps": 20,
    }
    (tmp_path / "race15.json").write_text(json.dumps(race))
    images = {split: torch.randn(256, 32, 32) for split in ("train", "valid")}
    torch.save(images | {f"{split}_labels": torch.arange(256) % 2 for split in images}, tmp_path / "race15.pt")
    states = {name: torch.randn(2, 33, 5, 8, 8) for name in ("train", "test")}
    torch.save(states, tmp_path / "states15.pt")
    torch.save((X[:, :64].clone(), Y), tmp_path / "digits13.pt")  # what chapter 13 keeps of its digits
    torch.save(X[:160].reshape(-1, 1, 16, 16).clone(), tmp_path / "galaxies22.pt")
    digits = {"x_train": X[:512, :64], "y_train": Y[:512], "x_test": X[512:, :64], "y_test": Y[512:]}
    torch.save({name: part.clone() for name, part in digits.items()}, tmp_path / "digits24.pt")
    torch.save({"x": X[:, :8].double(), "y": 2.0 * Y - 1, "start": X[:3, :8].double()}, tmp_path / "rows25.pt")
    torch.save({"points": X[:, :2].sigmoid().contiguous(), "c": X[:, 2].sigmoid()}, tmp_path / "settled23.pt")
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "dltutorial.py").write_text("raise ImportError('a script needs the course')\n")
    return tmp_path


# What these promise about signals, the end of a process or its launcher wants the real thing; of the others the first.
BY_THEIR_LAUNCHER = ("train.py", "checkpoint.py", "capstone.py", "join.py", "ddp.py")


@pytest.fixture(scope="module")
def forking():
    """A process that runs scripts with torch already imported."""
    env = {**os.environ, "PYTHONSAFEPATH": "", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, Path(__file__).with_name("forked_scripts.py")], env=env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        yield process
        process.stdin.close()


def run_forked(command, folder, data, process):
    """As torchrun or Python would run it; a CompletedProcess."""
    words = command.replace("DATA", str(data)).split()
    at = next(n for n, word in enumerate(words) if word.endswith(".py"))
    ranks = int(words[at - 1]) if words[0] == "torchrun" else 0
    said = folder / "said.txt"
    said.unlink(missing_ok=True)
    job = {"script": words[at], "argv": words[at + 1 :], "ranks": ranks, "cwd": str(folder), "said": str(said)}
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    statuses = json.loads(process.stdout.readline())
    return subprocess.CompletedProcess(words, max(map(abs, statuses)), said.read_text(), "")


def run(command, folder, data):
    program, *rest = command.replace("DATA", str(data)).split()
    env = {**os.environ, "PYTHONPATH": str(folder / "without"), "PYTHONSAFEPATH": "", "OMP_NUM_THREADS": "1"}
    line = [Path(sys.executable).parent / program, *rest]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "commands",  # their chapters run them all in make test
    [pytest.param(commands, marks=[pytest.mark.ci] * bool(n)) for n, commands in enumerate(COMMANDS)],
    ids=[commands[0].split(".py")[0].split()[-1] for commands in COMMANDS],
)
def test_a_script_runs_without_the_course(commands, folder, data, request):
    alone = any(name in command for command in commands for name in BY_THEIR_LAUNCHER)
    if any("serve.py" in command for command in commands):  # a network as chapter 15 exports one
        any_size = ({0: torch.export.Dim("batch", max=64)},)
        exported = torch.export.export(torch.nn.Conv2d(5, 5, 1), (torch.randn(2, 5, 8, 8),), dynamic_shapes=any_size)
        torch.export.save(exported, folder / "forecast15.pt2")
    for command in commands:
        if alone:
            ended = run(command, folder, data)
        else:
            ended = run_forked(command, folder, data, request.getfixturevalue("forking"))
        assert ended.returncode == 0, f"{command}\n{ended.stdout[-2000:]}\n{ended.stderr[-3000:]}"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import dltutorial", "a script needs the course"),
        (
            "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('one rank')\ntime.sleep(99)",
            "one rank",
        ),
    ],
)
def test_a_script_that_fails_is_noticed(text, said, folder, data, forking):
    (folder / "fails.py").write_text(text)
    ended = run_forked(f"{RANKS} fails.py", folder, data, forking)
    assert ended.returncode != 0
    assert said in ended.stdout


def test_every_written_file_is_run():
    told = " ".join(word for commands in COMMANDS for word in commands)
    imported = {name for text in PYTHON.values() for name in PYTHON if f"from {name[:-3]} import" in text}
    assert [name for name in PYTHON if name not in told and name not in imported] == []


@pytest.mark.parametrize("name", sorted(PYTHON))
def test_a_written_file_is_in_the_house_style(name):
    text = PYTHON[name]
    assert "dltutorial" not in text
    for command in (["check", "--extend-ignore", "D1"], ["format", "--check", "--diff"]):
        line = [Path(sys.executable).parent / "ruff", *command, "--config", ROOT / "notebooks" / ".ruff.toml"]
        ended = subprocess.run(
            [*line, "--stdin-filename", ROOT / "notebooks" / name, "-"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout


def test_a_changed_file_needs_the_course_no_more_than_the_one_it_came_from():
    """``scripts.change`` makes it in the chapter, which runs it; what it puts in names nothing of the course."""
    changing = {path: [c for c in code_cells(path) if "scripts.change(" in c] for path in NOTEBOOKS}
    assert sum(map(len, changing.values())) >= 8
    for path, cells in changing.items():
        for cell in cells:
            lines = [
                line for line in cell.splitlines() if not line.startswith(("from dltutorial", "import dltutorial"))
            ]
            assert "dltutorial" not in "\n".join(lines), path


def test_two_chapters_write_one_name_only_if_they_write_the_same():
    for name in PYTHON:
        texts = {files[name] for path, files in WRITTEN.items() if name in files and path.parent.name == "notebooks"}
        assert len(texts) <= 1, f"{name} differs between chapters: give it another name"
