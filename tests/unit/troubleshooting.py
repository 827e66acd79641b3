"""Makes TROUBLESHOOTING.md from dltutorial/advice.toml."""

import re

from dltutorial import advice


def page() -> str:
    """The table as a page in Markdown."""
    lines = [
        "# Troubleshooting",
        "",
        "The tables show errors that you may see, and what to do about each of them. A notebook of the course also",
        "shows the advice below the traceback of such an error. A `dltutorial` command shows the advice in its last",
        "line. The command `python tests/unit/troubleshooting.py > TROUBLESHOOTING.md` makes this page from",
        "`dltutorial/advice.toml`.",
    ]
    for group in dict.fromkeys(one.group for one in advice.table()):
        lines += ["", f"## {group}", "| you see | what to do |", "|---|---|"]
        for one in advice.table():
            if one.group == group:
                escaped = re.sub(r"([|*_<>])", r"\\\1", one.do)
                lines.append(f"| `{one.example}` | {escaped} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
