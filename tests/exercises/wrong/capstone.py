"""Wrong answers to the capstone, each a misconception: (label, source, part of the hint expected)."""

from pathlib import Path

from altered import altered

from dltutorial.course import scripts

RIGHT = scripts.written(Path(__file__).parents[3] / "solutions" / "capstone.ipynb")["capstone.py"]
_BACKWARD = "            (world_size * loss).backward()  # DDP divides the sum by world_size\n"
_OWN_SUM = """            (world_size * loss).backward()
            for p in network.parameters():
                dist.all_reduce(p.grad)
"""
_WRAP = "    ddp = DistributedDataParallel(network)\n"
_BROADCAST = """    ddp = network
    for p in network.parameters():
        dist.broadcast(p.data, 0)
"""
_WRITE = """    temporary = file.with_suffix(".unfinished")
    with open(temporary, "wb") as out:
        torch.save(state, out)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
"""
_RENAME = "    temporary.replace(file)\n"
_HANDLER = "        signal.signal(number, lambda *_: warnings.append(True))\n"
_SHARES = "DataLoader(data, batch_sampler=shares)"
_SHARE = "batch[rank::world_size].tolist()"
_SAVE = """            save(state | {"step": step}, checkpoint)
"""
_EPOCH = "        epoch, n_done = divmod(step, n_batches)\n"
_ORDER = """        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
        batches = order.split(args.batch)[n_done:]
        shares = [batch[rank::world_size].tolist() for batch in batches]
"""
_SAMPLER = """        sampler = DistributedSampler(data)
        sampler.set_epoch(epoch)
        shares = [share.tolist() for share in torch.tensor(list(sampler)).split(args.batch // world_size)][n_done:]
        batches = [share * world_size for share in shares]  # of each batch, only the size is used
"""
_SAMPLERS_BATCHES = "math.ceil(math.ceil(len(data) / world_size) / (args.batch // world_size))"
_IMPORT = "from torch.utils.data import DataLoader\n"
_IMPORTS = f"{_IMPORT}from torch.utils.data.distributed import DistributedSampler\n"
_OPTIMIZER = "SGD(network.parameters(), args.rate * args.batch / 64, momentum=0.9)"
_TRAIN = 'train(args, "cuda" if on_gpu else "cpu", warnings)'
_N_BATCHES = "math.ceil(len(data) / args.batch)"


def _with(*changes: tuple[str, str]) -> str:
    """What writes the right script with something changed."""
    return f"from pathlib import Path\nPath('capstone.py').write_text({altered(RIGHT, *changes)!r}, encoding='utf-8')"


def _job(text: str) -> str:
    return f"from pathlib import Path\nPath('capstone.sbatch').write_text({text!r}, encoding='utf-8')"


WRONG = [
    ("DistributedSampler on three ranks", _with((_ORDER, _SAMPLER), (_N_BATCHES, _SAMPLERS_BATCHES),
                                                (_IMPORT, _IMPORTS)), "DistributedSampler repeats samples"),
    ("a warning in the last update of an epoch", _with(
        ("        step = state", "        step = resumed = state"),
        ("step = n_warnings = 0", "step = n_warnings = resumed = 0"),
        (_EPOCH, "        epoch = (max(1, step) - (step == resumed)) // n_batches\n"
                 "        n_done = step - epoch * n_batches\n")), "no batch of this epoch is left"),
    ("a warning in the very last update", _with(("rank == 0 and step ==", "rank == 0 and not n_warnings and step ==")),
     "very last update"),
    ("removes the old checkpoint before the rename", _with((_RENAME, f"    file.unlink(missing_ok=True)\n{_RENAME}")),
     "only after the rename"),
    ("renames the old checkpoint and does not look for it", _with(
        (_RENAME, '    if file.exists():\n        file.replace(file.with_suffix(".old"))\n' + _RENAME)),
     "only after the rename"),
    ("the mean of the ranks' means", _with(
        (" * len(x) / len(batch)", ""), (_BACKWARD, "            loss.backward()\n"),
        ("torch.stack([loss.detach()", "torch.stack([loss.detach() * len(x) / len(batch)")), "section 4 of chapter 09"),
    ("model.pt only if something was trained", _with(
        ("    n_batches = math", "    first = step\n    n_batches = math"),
        ("and step == args.epochs", "and first < step == args.epochs")),
     "between the last checkpoint and model.pt"),
    ("makes the folder once only", _with(("parents=True, exist_ok=True", "parents=True")), "exist_ok=True"),
    ("the same order in each epoch", _with(("manual_seed(epoch)", "manual_seed(0)")), "must depend on the epoch"),
    ("does not shuffle", _with(("torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))",
                                "torch.arange(len(data))")), "Shuffle with a seed"),
    ("own weights on each rank", _with((_WRAP, "    ddp = network\n")), "Each rank begins with different weights"),
    ("throughput of one rank", _with(("n + len(batch)", "n + len(x)")), "add their numbers"),
    ("every rank reads all", _with((_SHARE, "batch.tolist()")), "Each rank reads all samples"),
    ("the batch is each rank's", _with(("order.split(args.batch)", "order.split(args.batch * world_size)"),
                                       ("len(data) / args.batch)", "len(data) / args.batch / world_size)")),
     "of all ranks in one"),
    ("drops the last batch", _with((_N_BATCHES, "len(data) // args.batch"), ("[n_done:]", "[n_done:n_batches]")),
     "Do not drop it"),
    ("an epoch too many", _with(("args.epochs * n_batches", "(args.epochs + 1) * n_batches")), "--epochs epochs"),
    ("each rank shuffles by itself", _with(("manual_seed(epoch)", "manual_seed(epoch + 1000 * rank)")),
     "one common order"),
    ("no autocast", _with(("with torch.autocast(device, torch.bfloat16):", "if True:")), "inside torch.autocast"),
    ("the whole network in bfloat16", _with(("Network().to(device)", "Network().to(device, torch.bfloat16)"),
                                            ("x.to(device)", "x.to(device, torch.bfloat16)")), "Keep the weights"),
    ("calls the network, not its wrapper", _with(("F.mse_loss(ddp(x", "F.mse_loss(network(x")), "call the wrapper"),
    ("sums the gradients", _with((_WRAP, _BROADCAST), (_BACKWARD, _OWN_SUM)), "a sum of gradients"),
    ("divides by the ranks again", _with((_BACKWARD, "            loss.backward()\n")), "DDP has already divided"),
    ("does not scale the rate", _with(("args.rate * args.batch / 64", "args.rate")), "divide it by 64"),
    ("scales the rate by the ranks", _with(("args.batch / 64", "args.batch / 64 * world_size")),
     "multiplied by the number of ranks"),
    ("the last batch divided by --batch", _with(("* len(x) / len(batch)", "* len(x) / args.batch")), "by its own size"),
    ("never zeroes", _with(("            optimizer.zero_grad()\n", "")), "zero_grad()"),
    ("another optimizer", _with((_OPTIMIZER, "AdamW(network.parameters(), args.rate * args.batch / 64)")),
     "momentum 0.9"),
    ("the loss of rank 0", _with(("total + batch_loss", "total + loss.item() * len(batch) / len(x)")),
     "loss of one rank's samples alone"),
    ("all ranks print", _with(("            if step % n_batches == 0:\n",
                               "        if True:\n            if step % n_batches == 0:\n")),
     "Only rank 0 prints"),
    ("saves through the wrapper", _with(("save(network.state_dict()", "save(ddp.state_dict()")), "begin with module."),
    ("no destroy_process_group", _with(("    dist.destroy_process_group()\n", "")), "dist.destroy_process_group()"),
    ("all ranks write", _with(("        if rank == 0:\n", "        if True:\n"),
                              ("            if step % n_batches", "            if rank == 0 and step % n_batches")),
     "Only rank 0 writes"),
    ("ignores the signal", _with((_HANDLER, "        pass\n")), "SIGUSR1 ended a rank at once"),
    ("workers that die of the signal", _with((_SHARES, "DataLoader(data, batch_sampler=shares, num_workers=1)")),
     "DataLoader workers"),
    ("knows SIGUSR1 only", _with(("(signal.SIGTERM, signal.SIGUSR1)", "(signal.SIGUSR1,)")), "SIGTERM ended a rank"),
    ("each rank leaves by its own note", _with(("batch_loss, n_warnings = sums.tolist()",
                                                "batch_loss, n_warnings = sums[0].item(), len(warnings)")),
     "all ranks must stop after the same update".capitalize()),
    ("saves in the handler, and leaves", _with((_HANDLER, "        signal.signal(number, lambda *_: sys.exit(0))\n"),
                                               ("import os\n", "import os\nimport sys\n")),
     "All ranks must stop after the same update"),
    ("looks at an epoch's end", _with(("len(warnings))", "len(warnings) * (step % n_batches == 0))")),
     "Ask after each update"),
    ("leaves without a checkpoint", _with((_SAVE, "            if not n_warnings:\n    " + _SAVE)),
     "save before the script ends"),
    ("begins the epoch again", _with(("        step = state[\"step\"]\n", "        step = state[\"step\"]\n"
                                      "        step -= step % math.ceil(len(data) / args.batch)\n")),
     "so samples are read twice"),
    ("never resumes", _with(("if checkpoint.exists():", "if False:")), "The training began again"),
    ("forgets the weights", _with(('        network.load_state_dict(state["network"])\n', "")),
     "The weights are not those of the checkpoint"),
    ("forgets the optimizer", _with(('        optimizer.load_state_dict(state["optimizer"])\n', "")),
     "but not the momentum"),
    ("only rank 0 loads", _with(("if checkpoint.exists():", "if rank == 0 and checkpoint.exists():")),
     "continue at different updates"),
    ("saves when warned only", _with((_SAVE, "            if n_warnings:\n    " + _SAVE)), "comes without a warning"),
    ("writes under its name", _with((_WRITE, "    torch.save(state, file)\n")), "Write to a temporary name"),
    ("waits for ever", _with((", timeout=timedelta(seconds=args.timeout)", "")), "By default, gloo waits"),
    ("hides errors", _with((f"    {_TRAIN}",
                            f"    try:\n        {_TRAIN}\n    except RuntimeError:\n        return")),
     "An except hides"),
    ("imports the course", _with(("import torch\n", "import dltutorial\nimport torch\n")), "where only torch"),
    ("a job script without a time limit", _job('#!/bin/bash\nsrun torchrun --standalone --nproc-per-node 2 '
                                               'capstone.py "$@"\n'), "#SBATCH --time"),
    ("a job that is not warned", _job('#!/bin/bash\n#SBATCH -t 5\nsrun torchrun --standalone --nproc-per-node 2 '
                                      'capstone.py "$@"\n'), "--signal=TERM@120"),
    ("a job script that hands nothing on", _job("#!/bin/bash\n#SBATCH --time=5 --signal=TERM@120\nsrun "
                                                "torchrun --standalone --nproc-per-node 2 capstone.py job\n"),
     "arguments of the job script"),
]  # fmt: skip

# The cases before these take a minute and pass. So the test of these answers begins with the case that rejects them.
FIRST_CASE = {
    label: case
    for case, labels in {
        "_shares_are_unequal": ("DistributedSampler on three ranks", "the mean of the ranks' means"),
        "_a_warning_stops_all": ("ignores the signal", "workers that die of the signal", "knows SIGUSR1 only",
                                 "each rank leaves by its own note", "saves in the handler, and leaves",
                                 "looks at an epoch's end", "leaves without a checkpoint"),
        "_continues_after_a_warning": ("begins the epoch again", "never resumes", "forgets the weights",
                                       "forgets the optimizer", "only rank 0 loads"),
        "_gives_up_waiting": ("a warning in the last update of an epoch", "waits for ever", "hides errors"),
        "_survives_a_kill": ("saves when warned only", "writes under its name", "a warning in the very last update",
                             "model.pt only if something was trained"),
        "_keeps_a_checkpoint": ("removes the old checkpoint before the rename",
                                "renames the old checkpoint and does not look for it"),
        "_runs_as_a_job": ("a job script that hands nothing on",),
    }.items()
    for label in labels
}  # fmt: skip
