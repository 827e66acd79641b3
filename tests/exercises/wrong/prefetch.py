"""Wrong answers to the exercise of chapter 03, each a misconception: (label, source, part of the hint expected)."""

RIGHT = """
import queue
import threading

def prefetch(source, depth):
    if depth < 1:
        raise ValueError(depth)
    ready = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def put(kind, value=None):
        while not stop.is_set():
            try:
                ready.put((kind, value), timeout=0.1)
                return
            except queue.Full:
                pass

    def work():
        try:
            for item in source:
                put("item", item)
                if stop.is_set():
                    return
            put("end")
        except Exception as error:
            put("error", error)

    threading.Thread(target=work, daemon=True).start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        stop.set()
"""


def _with(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


WRONG = [
    ("no thread", "def prefetch(source, depth):\n    yield from source\n", "nothing was loaded"),
    ("depth 0 has no bound", _with("    if depth < 1:\n        raise ValueError(depth)\n", ""), "no bound at all"),
    ("a queue a little too large", _with("maxsize=depth)", "maxsize=depth + 1)"), "A little too many"),
    ("a queue without a size", _with("maxsize=depth", ""), "fills the memory"),
    ("everything first", "def prefetch(source, depth):\n    yield from list(source)\n", "fills the memory"),
    ("ahead, but by a list",
     "def prefetch(source, depth):\n    items = list(source)\n    for item in items:\n        yield item\n",
     "fills the memory"),
    ("last in, first out", _with("queue.Queue", "queue.LifoQueue"), None),
    ("None marks the end",
     _with("            yield value", "            if value is None:\n                return\n            yield value"),
     "may be None"),
    ("falsy items dropped", _with("            yield value", "            if value:\n                yield value"),
     None),
    ("an error ends the thread without a word", _with('            put("error", error)', "            return"),
     "waits for ever"),
    ("an error looks like the end", _with('            put("error", error)', '            put("end")'),
     "as if all was well"),
    ("an error is an item",
     _with("                raise value\n", "                yield value\n                return\n"), "Raise it"),
    ("another error", _with("                raise value\n", '                raise RuntimeError("loading failed")\n'),
     "same error object"),
    ("an error overtakes the items",
     _with('            put("error", error)', '            ready.queue.clear()\n            put("error", error)'),
     None),
    ("the thread outlives its consumer", _with("        stop.set()\n", "        pass\n"), "room in the queue"),
    ("put without an end", _with("ready.put((kind, value), timeout=0.1)", "ready.put((kind, value))"),
     "room in the queue"),
    ("waits for the thread first",
     _with("    threading.Thread(target=work, daemon=True).start()\n",
           "    thread = threading.Thread(target=work, daemon=True)\n    thread.start()\n    thread.join()\n"),
     "waits for ever"),
    ("never says that it is over", _with('            put("end")\n', ""), "waits for ever"),
    (
        "one queue for all",
        RIGHT.replace("    ready = queue.Queue(maxsize=depth)\n", "").replace(
            "def prefetch", "ready = queue.Queue(maxsize=3)\n\ndef prefetch"
        ),
        None,
    ),
]  # fmt: skip
