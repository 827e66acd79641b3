"""Links from the chapters' prose to the glossary: the first time a chapter uses a term, the word leads to it.

In: Markdown. Out: the same with MyST's ``{term}`` role around such words. Headings, code, links and mathematics stay
as they are.
"""

import re
from collections.abc import Sequence
from typing import Any

_GLOSSARY = re.compile(r"^(?P<fence>`{3,}|:{3,})\{glossary\}[^\n]*\n(?P<body>.*?)^(?P=fence)\s*$", re.M | re.S)
# What is passed over: fenced and inline code, mathematics, headings, links and pictures, tags, addresses, directives.
_ASIDE = re.compile(
    r"(^```.*?^```|^:::[^\n]*$|`[^`\n]+`|\$\$.+?\$\$|(?<!\\)\$[^$\n]+\$|^#[^\n]*$|!?\[[^\]]*\]\([^)]*\)|<[^>]+>"
    r"|https?://\S+)",
    re.S | re.M,
)


def defined(glossary: str) -> list[str]:
    """The terms that a glossary page defines, as it spells them."""
    bodies = (found["body"] for found in _GLOSSARY.finditer(glossary))
    lines = (line for body in bodies for line in body.splitlines())
    return [line.strip() for line in lines if line[:1].strip() and not line.startswith((":", "%"))]


def link(cells: Sequence[dict[str, Any]], terms: Sequence[str]) -> None:
    """Link the first use of each term in the Markdown cells of one notebook, in place."""
    if not terms:
        return
    spelled = {term.lower(): term for term in terms}
    words = "|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w{{`-])({words})(s|es)?(?![\w`-])", re.IGNORECASE)
    seen: set[str] = set()

    def role(hit: re.Match) -> str:
        term = spelled[hit[1].lower()]
        if term in seen:
            return hit[0]
        seen.add(term)
        return f"{{term}}`{hit[0]} <{term}>`"

    for cell in cells:
        if cell["cell_type"] == "markdown":
            parts = _ASIDE.split("".join(cell["source"]))
            parts[::2] = [pattern.sub(role, part) for part in parts[::2]]
            cell["source"] = "".join(parts)
