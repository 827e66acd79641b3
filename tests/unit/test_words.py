"""The course uses plain words: the archaic and figurative words that it once used do not come back.

``tests/limits.json`` lists, under "words", the files that still have such words, with their number. The list may only
become shorter. After words were replaced, write the output of ``python tests/unit/test_words.py`` into it.
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("book", "dltutorial", "exercises", "hub", "notebooks", "pages", "slurm", "solutions", "tests")
ENDINGS = (".ipynb", ".md", ".py", ".sbatch", ".sh")
# Not meant are the option --quiet or quiet=True, the multiprocessor of a GPU, and the "processor : 0" of /proc/cpuinfo.
WORDS = re.compile(
    r"""(?<![\w-])(
    mend(s|ed|ing)? | foretells? | foretold | anew | alike | errs | the\ very | dear(er|est|ly)? | for\ want\ of
    | by\ heart | at\ home | in\ peace | yardsticks? | shrugs? | bargains? | strangers? | whoever
    | quiet(s|er|ly)?(?!\s?=) | lean(s|er|est)? | told | patient | suspect(s|ed)? | verdicts? | detectives? | rungs?
    | (?-i:processors?)(?!\ :) | comput(e|es|ed)\ again | inflate[sd]? | whole\ or\ not\ there
    )(?!\w)""",
    re.IGNORECASE | re.VERBOSE,
)
LIMITS = json.loads((ROOT / "tests" / "limits.json").read_text(encoding="utf-8"))["words"]


def text_of(file: Path) -> str:
    """Return the text of a file, or the cells of a notebook without their outputs."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


def files() -> list[Path]:
    """Return the files of the course, without this one and without what a run has written."""
    every = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in ENDINGS]
    every += ROOT.glob("*.md")
    written = {"kept", "runs", ".ipynb_checkpoints", "reference", "__pycache__"}
    return sorted(file for file in every if file != Path(__file__) and not written & set(file.parts))


def counts() -> dict[str, int]:
    """Return the number of such words in each file that has any."""
    found = {}
    for file in files():
        number = len(WORDS.findall(text_of(file)))
        if number > 0:
            found[file.relative_to(ROOT).as_posix()] = number
    return found


def test_no_file_has_more_of_these_words_than_listed_and_the_list_is_as_short_as_it_can_be():
    found = counts()
    changed = {}
    for name in found.keys() | LIMITS.keys():
        if found.get(name, 0) != LIMITS.get(name, 0):
            changed[name] = f"{found.get(name, 0)}, listed {LIMITS.get(name, 0)}"
    assert changed == {}


if __name__ == "__main__":
    print(json.dumps(counts(), indent=4))
