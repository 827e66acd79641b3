"""Execute a notebook from a test."""

from dltutorial.course import execute


def executed(*args, **kwargs) -> execute.Executed:
    """Return the result of ``execute.execute``, which runs in a process of its own."""
    with execute.pool(1) as pool:
        return pool.submit(execute.execute, *args, **kwargs).result()
