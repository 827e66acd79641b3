"""A live kernel and its client."""

from jupyter_client.manager import start_new_kernel


class Notebook:
    """A kernel that runs cells one by one through ``client``, until it is closed."""

    def __init__(self, kernel_name, **options):
        self.manager, self.client = start_new_kernel(startup_timeout=120, kernel_name=kernel_name, **options)

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
