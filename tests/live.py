"""A live kernel, cell by cell."""

import re
import time
from dataclasses import dataclass


@dataclass
class Done:
    """What a cell did."""

    status: str = ""
    number: int = 0
    seconds: float = 0.0
    stdout: str = ""
    error: str = ""

    def take(self, message):
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            self.stdout += content["text"]
        elif kind == "error":
            self.error = "\n".join(content["traceback"])


class Notebook:
    """A kernel and its client."""

    def __init__(self, kernel_name):
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name=kernel_name)

    def run(self, code, watch=lambda done: None, timeout=150):
        done, began_s = Done(), time.monotonic()

        def hook(message):
            done.take(message)
            watch(done)

        reply = self.client.execute_interactive(code.strip(), output_hook=hook, timeout=timeout)
        done.status, done.seconds = reply["content"]["status"], time.monotonic() - began_s
        done.number = reply["content"]["execution_count"]
        return done

    def ok(self, code, **options):
        done = self.run(code, **options)
        assert done.status == "ok", done.error
        return done

    def fails(self, code, told, **options):
        done = self.run(code, **options)
        assert done.status == "error"
        assert re.search(told, done.error, re.DOTALL), done.error
        return done

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
