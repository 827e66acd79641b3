"""Execute a notebook from a test, even if a browser's event loop is running in this thread."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from dltutorial.course import execute


def executed(*args, **kwargs) -> execute.Executed:
    """Return the result of ``execute.execute``, which runs in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(execute.execute(*args, **kwargs))).result()
