"""Makes TROUBLESHOOTING.md from dltutorial/advice.toml."""

import re

from dltutorial import advice


def page() -> str:
    """The table as a page in Markdown."""
    lines = [
        "# Troubleshooting",
        "",
        "The tables list error messages with their causes and fixes. Search this page for some words of your message.",
        "Numbers and names in your message may be different. A notebook of the course also shows the cause and the fix",
        "below the traceback of such an error, and a `dltutorial` command shows them in its last line.",
        "If JupyterLab does not open, or if a cell runs forever, see [JupyterLab](book/training.md#jupyterlab).",
    ]
    for group in dict.fromkeys(one.group for one in advice.table()):
        lines += ["", f"## {group}", "| error message | cause | what to do |", "|---|---|---|"]
        for one in advice.table():
            if one.group == group:
                cause, fix = re.sub(r"([|*_<>])", r"\\\1", one.do).split(". ", maxsplit=1)
                lines.append(f"| `{one.example}` | {cause}. | {fix} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
