"""Execute a notebook from a test, also where a browser's event loop is running in this thread."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from dltutorial.course import execute


def executed(*args, **kwargs) -> execute.Executed:
    """What ``execute.execute`` gives, waited for in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(execute.execute(*args, **kwargs))).result()
