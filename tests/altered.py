"""A wrong answer is the right one with something changed."""


def altered(source: str, *changes: tuple[str, str]) -> str:
    """The source with every old text replaced by a new one; an old text that is not there is an error."""
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return source
