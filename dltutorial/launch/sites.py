"""What the files of ``slurm/sites`` set, each variable with the reason that stands above it.

In: a site's name. Out: one ``Setting`` for each variable. The files stay plain shell; this only reads them.
"""

import re
from dataclasses import dataclass

from dltutorial import paths

_ASSIGNED = re.compile(r'([A-Z][A-Z0-9_]*)=("[^"]*"|[^\s#]*)')
_DEFAULT = re.compile(r"^\$\{\w+:-(.*)\}$")


@dataclass(frozen=True)
class Setting:
    """One variable that a site's file sets, why, and where that is documented."""

    variable: str
    value: str
    reason: str
    source: str


def names() -> list[str]:
    """The sites there are.

    Raises:
        CourseError: the course's folder is not here.
    """
    return sorted(file.stem for file in (paths.course_folder("slurm") / "slurm" / "sites").glob("*.sh"))


def settings(site: str) -> list[Setting]:
    """All that a site's file sets, in its order.

    Raises:
        CourseError: the course's folder is not here.
        OSError: there is no such site.
    """
    text = (paths.course_folder("slurm") / "slurm" / "sites" / f"{site}.sh").read_text(encoding="utf-8")
    comment: list[str] = []
    found: list[Setting] = []
    is_new = True  # the next comment is about what follows it
    for line in text.splitlines():
        if match := re.match(r"\s*# ?(.*)", line):
            comment = [match[1]] if is_new else [*comment, match[1]]
            is_new = False
        elif match := re.match(r"\s*export (.*)", line):
            found += [_setting(name, value, comment) for name, value in _ASSIGNED.findall(match[1])]
            is_new = True
        elif not line.strip():
            is_new = True
    return found


def _setting(name: str, value: str, comment: list[str]) -> Setting:
    value = value.strip('"')
    default = _DEFAULT.match(value)
    sources = [word.rstrip(",") for line in comment for word in line.split() if word.startswith("https://")]
    reason = " ".join(line for line in comment if not line.startswith(("https://", " ")))
    return Setting(name, default[1] if default else value, reason, sources[-1] if sources else "")
