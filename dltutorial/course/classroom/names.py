"""Pseudonyms: two friendly words and a number, drawn by chance, so that they say nothing about anybody.

In: nothing. Out: such as ``calm-otter-417``; 30 × 40 × 900 of them.
"""

import secrets

_HOW = (
    "able amber bold brave bright calm clever cosy daring early eager fair fast fond gentle glad golden happy keen "
    "kind lively lucky merry neat patient quick quiet ready silver steady"
)
_WHO = (
    "badger bear beaver bison cat crane curlew deer dolphin eagle egret falcon finch fox gecko goose hare hawk "
    "heron ibex jay koala lark lemur lynx marten mole newt otter owl panda plover puffin raven robin seal swan tern "
    "turtle wren"
)


def pseudonym() -> str:
    """A new one by chance."""
    return f"{secrets.choice(_HOW.split())}-{secrets.choice(_WHO.split())}-{100 + secrets.randbelow(900)}"
