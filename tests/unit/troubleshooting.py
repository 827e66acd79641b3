"""Makes TROUBLESHOOTING.md from dltutorial/advice.toml."""

import re

from dltutorial import advice


def page() -> str:
    """The table as a page in Markdown."""
    lines = [
        "# Troubleshooting",
        "",
        "What you may see, and what to do. In a course notebook the sentence also appears below the traceback; the",
        "`dltutorial` commands end with it. Made by `python tests/unit/troubleshooting.py > TROUBLESHOOTING.md`.",
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
