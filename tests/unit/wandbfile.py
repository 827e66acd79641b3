"""What W&B's own file of an offline run holds; its package has no reader any more."""

import json
import struct


def read(folder):
    """Every number logged to the newest offline W&B run in a run's folder: name → (step, value)."""
    from wandb.proto.wandb_internal_pb2 import Record

    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime)
    if not files:
        return {}
    scalars = {}
    for history in (Record.FromString(message).history for message in messages(files[-1].read_bytes())):
        for item in history.item:  # a record of another kind has none
            name, value = item.key or "/".join(item.nested_key), json.loads(item.value_json)
            if isinstance(value, int | float) and not name.startswith("_"):
                scalars.setdefault(name, []).append((history.step.num, float(value)))
    return scalars


def messages(raw):
    """The messages, in LevelDB's log format behind a head of 7 bytes.

    Blocks of 32 KiB hold fragments of crc (4 bytes), length (2) and type (1: whole, 2: first, 3: middle, 4: last); a
    rest under 7 bytes is padding. github.com/google/leveldb, doc/log_format.md.
    """
    position, message = 7, b""
    while position + 7 <= len(raw):
        left = 32768 - position % 32768
        length, kind = struct.unpack_from("<HB", raw, position + 4)
        if left < 7 or kind == 0:
            position += left
            continue
        fragment = raw[position + 7 : position + 7 + length]
        if len(fragment) < length:  # the writer was killed in the middle of this one
            return
        position += 7 + length
        message = fragment if kind in (1, 2) else message + fragment
        if kind in (1, 4):
            yield message
