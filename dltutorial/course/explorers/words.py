"""Sizes and times as the words of a picture have them.

In: bytes, seconds. Out: at least three digits, and a unit that suits them.
"""

from dltutorial.profile.timing import duration

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(n_bytes: float) -> str:
    """Bytes: ``1.5 MiB``, ``1,010 KiB``."""
    power = 0
    while n_bytes >= 1023.5 and power < len(_UNITS) - 1:
        n_bytes, power = n_bytes / 1024, power + 1
    return f"{three(n_bytes) if power else format(n_bytes, '.0f')} {_UNITS[power]}"


def span(seconds: float) -> str:
    """Seconds: ``1.5 ms``, ``2,300 s``."""
    return f"{three(seconds)} s" if seconds >= 1 else duration(seconds)


def three(value: float) -> str:
    """A number of three digits, or of all those before the point: ``1``, ``25.7``, ``25,657``."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
