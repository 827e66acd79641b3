"""A wrong answer is the right answer with a few changes."""


def altered(source: str, *changes: tuple[str, str]) -> str:
    """Return the source after every change ``(old, new)``. A text ``old`` that does not occur is an error."""
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return source
