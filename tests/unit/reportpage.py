"""What the tests of the report share: a page taken apart, and records as chapters write them."""

import html.parser
import json

from cells import run

from dltutorial.course import report

RATIO = "valid/rmse_ratio_to_persistence"


class Page(html.parser.HTMLParser):
    """Tags with their attributes, and the text, of a page; what each section says."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.words, self.source = [], [], source
        self._section, self._parts = "", {}
        self.feed(self.source)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self._section = dict(attrs).get("id", "")

    def handle_data(self, data):
        self.words.append(data)
        self._parts.setdefault(self._section, []).append(data)

    def section(self, anchor):
        return " ".join(" ".join(self._parts.get(anchor, [])).split())

    @property
    def alts(self):
        """What the charts say, each once: a chart is drawn for two widths."""
        return list(dict.fromkeys(attrs["aria-label"] for tag, attrs in self.tags if tag == "svg"))

    def alt(self, words):
        (found,) = [alt for alt in self.alts if words in alt]
        return " ".join(found.split())


def executed(files=()):
    """The page as the command writes it."""
    return Page(report.write("report", files=[str(file) for file in files]).read_text(encoding="utf-8"))


def undrawn(monkeypatch, files=()):
    """The page's parts, from the notebook's cells run here; charts keep their words only."""
    return Page("".join(run(monkeypatch, "report", undrawn=["svg"], files=files)["displayed"]))


def prediction(name, guess, model, measured, touched=True):
    return {"what": name, "value": measured, "unit": "s", "kind": "prediction", "question": f"How long is {name}?",
            "measured": measured, "guess": guess, "touched": touched, "ratio": guess / measured, "model": model,
            "model_ratio": model / measured}  # fmt: skip


def train_run(folder, ratios, status="finished"):
    folder.mkdir()
    (folder / "status.json").write_text(json.dumps({"status": status}))
    lines = [
        {"step": 10 * i, "samples_per_s": 98.7, "scores": {RATIO: ratio} if ratio else {}}
        for i, ratio in enumerate(ratios, 1)
    ]
    (folder / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
