"""Wrong answers to the capstone, each a misconception: (label, source, part of the hint expected)."""

from pathlib import Path

from altered import altered

from dltutorial.course import scripts

RIGHT = scripts.written(Path(__file__).parents[3] / "solutions" / "capstone.ipynb")["capstone.py"]
_AGREE = """            dist.all_reduce(stop)  # all leave after the same update
"""
_OWN_SUM = """            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
"""
_BROADCAST = """Network().to(device)
    for p in model.parameters():
        dist.broadcast(p.data, 0)
"""
_WRITE = """    with open(temporary := file.with_suffix(".partial"), "wb") as out:
        torch.save(state, out)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
"""
_HANDLER = """        signal.signal(number, lambda *_: warned.append(True))  # no more than a note
"""
_WRAPPED = "DistributedDataParallel(Network().to(device))"


def _with(*changes: tuple[str, str]) -> str:
    """What writes the right script with something changed."""
    return f"from pathlib import Path\nPath('capstone.py').write_text({altered(RIGHT, *changes)!r}, encoding='utf-8')"


def _job(text: str) -> str:
    return f"from pathlib import Path\nPath('capstone.sbatch').write_text({text!r}, encoding='utf-8')"


WRONG = [
    ("forgets set_epoch", _with(("        sampler.set_epoch(epoch)\n", "")), "sampler.set_epoch(epoch)"),
    ("own weights on each rank", _with((_WRAPPED, "Network().to(device)"), ("model.module", "model")),
     "Each rank begins with weights of its own"),
    ("throughput of one rank", _with(("        dist.all_reduce(sums)\n", "")), "sum their samples"),
    ("no sampler: every rank reads all", _with(("sampler=sampler)", "shuffle=True)")), "Every rank reads everything"),
    ("the batch is each rank's", _with(("args.batch // dist.get_world_size()", "args.batch")), "of all ranks in one"),
    ("drops the last batch", _with(("sampler=sampler)", "sampler=sampler, drop_last=True)")), "Do not drop it"),
    ("an epoch too many", _with(("len(loader), args.epochs)", "len(loader), args.epochs + 1)")), "--epochs times"),
    ("each rank shuffles by itself", _with(("DistributedSampler(data := Samples())",
                                            "DistributedSampler(data := Samples(), seed=rank)")), "one common order"),
    ("no autocast", _with(("with torch.autocast(device.type, torch.bfloat16):", "if True:")), "inside torch.autocast"),
    ("the whole network in bfloat16", _with(("Network().to(device)", "Network().to(device, torch.bfloat16)"),
                                            ("x.to(device)", "x.to(device, torch.bfloat16)")), "Keep the weights"),
    ("calls the network, not its wrapper", _with(("F.mse_loss(model(x", "F.mse_loss(model.module(x")),
     "call the wrapper"),
    ("sums the gradients", _with((_WRAPPED, _BROADCAST), ("model.module", "model"),
                                 ("            loss.backward()\n", _OWN_SUM)), "a sum of gradients"),
    ("divides by the ranks again", _with(("loss.backward()", "(loss / dist.get_world_size()).backward()")),
     "DDP has divided"),
    ("does not scale the rate", _with(("args.rate * args.batch / 64", "args.rate")), "scale it linearly"),
    ("scales the rate by the ranks", _with(("args.batch / 64", "args.batch / 64 * dist.get_world_size()")),
     "a rate times the ranks"),
    ("the last batch divided by --batch", _with(("loss.backward()", "(loss * len(x) * dist.get_world_size() / "
                                                                    "args.batch).backward()")), "by its own size"),
    ("never zeroes", _with(("            optimizer.zero_grad()\n", "")), "zero_grad()"),
    ("another optimizer", _with(("SGD(model.parameters(), args.rate * args.batch / 64, momentum=0.9)",
                                 "AdamW(model.parameters(), args.rate * args.batch / 64)")), "momentum 0.9"),
    ("the loss of rank 0", _with(("        dist.all_reduce(sums)\n", "        mean = sums[0] / sums[1]\n"
                                  "        dist.all_reduce(sums)\n"), ("loss / n:.6f", "mean:.6f")),
     "loss of one rank's samples alone"),
    ("all ranks print", _with(("        if rank == 0:\n            speed", "        if True:\n            speed")),
     "One rank prints for all"),
    ("saves through the wrapper", _with(("save(model.module.state_dict()", "save(model.state_dict()")),
     "begin with module."),
    ("no destroy_process_group", _with(("    dist.destroy_process_group()\n", "")), "dist.destroy_process_group()"),
    ("all ranks write", _with(("if rank == 0 and (stop", "if (stop")), "Both ranks write into one file"),
    ("ignores the signal", _with((_HANDLER, "        pass\n")), "SIGUSR1 ended a rank at once"),
    ("workers that die of the signal", _with(("sampler=sampler)", "sampler=sampler, num_workers=1)")),
     "DataLoader workers, too"),
    ("knows SIGUSR1 only", _with(("(signal.SIGTERM, signal.SIGUSR1)", "(signal.SIGUSR1,)")), "SIGTERM ended a rank"),
    ("each rank leaves by its own note", _with((_AGREE, "")), "all stop after the same update"),
    ("saves in the handler, and leaves", _with((_HANDLER, "        signal.signal(number, lambda *_: sys.exit(0))\n"),
                                               ("import os\n", "import os\nimport sys\n")),
     "all stop after the same update"),
    ("looks at an epoch's end", _with(("stop = torch.tensor(bool(warned)",
                                       "stop = torch.tensor(bool(warned) and update % len(loader) == 0")),
     "Until an epoch's end"),
    ("leaves without a checkpoint", _with(("(stop or update % len(loader) == 0)", "update % len(loader) == 0")),
     "saves before it leaves"),
    ("begins the epoch anew", _with(("            if update <= done:  # made before\n                continue\n", "")),
     "so samples come twice"),
    ("never resumes", _with(("if checkpoint.exists():", "if False:")), "It began anew"),
    ("forgets the weights", _with(('        model.module.load_state_dict(state["model"])\n', "")),
     "The weights are not those of the checkpoint"),
    ("forgets the optimizer", _with(('        optimizer.load_state_dict(state["optimizer"])\n', "")),
     "momentum is not"),
    ("only rank 0 loads", _with(("if checkpoint.exists():", "if rank == 0 and checkpoint.exists():")),
     "at different places"),
    ("saves when warned only", _with(("(stop or update % len(loader) == 0)", "stop")), "not every stop comes with"),
    ("writes under its name", _with((_WRITE, "    torch.save(state, file)\n")), "write to another name, then rename"),
    ("waits for ever", _with((", timeout=timedelta(seconds=args.timeout)", "")), "By default a rank waits"),
    ("hides errors", _with(("    train(args, device, warned)\n    dist.destroy_process_group()\n",
                            "    try:\n        train(args, device, warned)\n        dist.destroy_process_group()\n"
                            "    except RuntimeError:\n        pass\n")), None),
    ("imports the course", _with(("import torch\n", "import dltutorial\nimport torch\n")), "wherever torch is"),
    ("a job script without a time limit", _job('#!/bin/bash\nsrun torchrun --standalone --nproc-per-node 2 '
                                               'capstone.py "$@"\n'), "#SBATCH --time"),
    ("a job that is not warned", _job('#!/bin/bash\n#SBATCH -t 5\nsrun torchrun --standalone --nproc-per-node 2 '
                                      'capstone.py "$@"\n'), "--signal=TERM@120"),
    ("a job script that hands nothing on", _job("#!/bin/bash\n#SBATCH --time=5 --signal=TERM@120\nsrun "
                                                "torchrun --standalone --nproc-per-node 2 capstone.py job\n"),
     "arguments handed on"),
]  # fmt: skip

# What the cases before it take a minute to let pass: the test of these begins with the case that is to reject them.
FIRST_CASE = {
    label: case
    for case, labels in {
        "_a_warning_stops_all": ("ignores the signal", "workers that die of the signal", "knows SIGUSR1 only",
                                 "each rank leaves by its own note", "saves in the handler, and leaves",
                                 "looks at an epoch's end", "leaves without a checkpoint"),
        "_goes_on_after_a_warning": ("begins the epoch anew", "never resumes", "forgets the weights",
                                     "forgets the optimizer", "only rank 0 loads"),
        "_survives_a_kill": ("saves when warned only", "writes under its name"),
        "_gives_up_waiting": ("waits for ever",),
        "_runs_as_a_job": ("a job script that hands nothing on",),
    }.items()
    for label in labels
}  # fmt: skip
