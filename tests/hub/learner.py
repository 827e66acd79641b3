"""A learner as the hub sees one: logs in with a name and the password, has an own token, runs cells by websocket."""

import json
import time
import uuid
from urllib.parse import quote

import requests
import websocket

# A cell that logs a run and shows it.
BOARD = """
from pathlib import Path
from dltutorial.record import board, track
tracker = track.Tracker(("tensorboard",), Path("runs/watched"), {})
for step in range(1, 6):
    tracker.log(step, {"train/loss": 1 / step})
tracker.close()
board.show(Path("runs/watched"))
"""


class Learner:
    """One learner, logged in.

    Attributes:
        name: on the hub.
        page: a session with the cookies of a browser.
        token: of this learner, made by this learner.
    """

    def __init__(self, hub_url: str, name: str, password: str):
        self.name, self._hub = name, hub_url
        self.page = requests.Session()
        self.page.get(f"{hub_url}/hub/login", timeout=60).raise_for_status()
        form = {"username": name, "password": password, "_xsrf": self.xsrf()}
        self.login = self.page.post(f"{hub_url}/hub/login", data=form, allow_redirects=False, timeout=60)
        self.token = self._make_token() if self.login.status_code == 302 else ""

    def xsrf(self) -> str:
        """The hub's cookie against forged requests."""
        return next(cookie.value for cookie in self.page.cookies if cookie.name == "_xsrf" and "/hub" in cookie.path)

    def _make_token(self) -> str:
        made = self.page.post(
            f"{self._hub}/hub/api/users/{self.name}/tokens",
            json={"note": "test"},
            headers={"X-XSRFToken": self.xsrf()},
            timeout=60,
        )
        made.raise_for_status()
        return made.json()["token"]

    def ask(self, path: str, method: str = "GET", whose: str = "", **options) -> requests.Response:
        """A request with this learner's token to the server of ``whose`` (default: their own)."""
        url = f"{self._hub}/user/{whose or self.name}/{path}"
        return self._request(method, url, **options)

    def ask_hub(self, path: str, method: str = "GET", **options) -> requests.Response:
        """A request with this learner's token to the hub."""
        return self._request(method, f"{self._hub}/hub/api/{path}", **options)

    def _request(self, method: str, url: str, **options) -> requests.Response:
        headers = {"Authorization": f"token {self.token}"}
        return requests.request(method, url, headers=headers, timeout=120, allow_redirects=False, **options)

    def start_server(self, within_s: float = 120) -> None:
        """Spawn this learner's server, and wait until it answers."""
        self.ask_hub(f"users/{self.name}/server", "POST").raise_for_status()
        until_s = time.monotonic() + within_s
        while self.ask("api/status").status_code != 200:
            assert time.monotonic() < until_s, f"no server for {self.name}"
            time.sleep(0.1)

    def stop_server(self, within_s: float = 60) -> None:
        """End it, and wait until it has."""
        until_s = time.monotonic() + within_s
        while self.ask_hub(f"users/{self.name}/server", "DELETE").status_code != 204:
            assert time.monotonic() < until_s, f"the server of {self.name} does not end"
            time.sleep(0.1)

    def pull(self, repository: str, target: str) -> list[dict]:
        """What nbgitpuller says while it pulls."""
        asked = f"git-pull/api?repo={quote(repository, safe='')}&targetpath={target}&branch=main"
        text = self.ask(asked).text
        return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]

    def open_notebook(self, path: str) -> "Kernel":
        """A kernel for a notebook, as JupyterLab starts it."""
        wanted = {"path": path, "name": path, "type": "notebook", "kernel": {"name": "python3"}}
        made = self.ask("api/sessions", "POST", json=wanted)
        made.raise_for_status()
        return Kernel(self._hub.replace("http", "ws", 1), f"user/{self.name}/", self.token, made.json()["kernel"]["id"])


class Kernel:
    """A running kernel of a server; ``base`` is the server's part of the address."""

    def __init__(self, url: str, base: str, token: str, kernel_id: str):
        self._socket = websocket.create_connection(
            f"{url}/{base}api/kernels/{kernel_id}/channels",
            header=[f"Authorization: token {token}"],
            timeout=200,
        )

    def run(self, code: str) -> list[dict]:
        """The outputs of a cell, until the kernel is idle again."""
        number, outputs, open_ends = uuid.uuid4().hex, [], {"idle", "reply"}
        header = {"msg_id": number, "msg_type": "execute_request", "username": "", "session": number, "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": True}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "buffers": []}
        self._socket.send(json.dumps(message | {"channel": "shell"}))
        while open_ends:
            got = json.loads(self._socket.recv())
            if got["parent_header"].get("msg_id") != number:
                continue
            kind = got["msg_type"]
            if kind == "execute_reply":
                open_ends.discard("reply")
            elif kind == "status" and got["content"]["execution_state"] == "idle":
                open_ends.discard("idle")
            elif kind in ("stream", "display_data", "execute_result", "error"):
                outputs.append({"kind": kind, **got["content"]})
        return outputs

    def close(self) -> None:
        """Leave; the kernel lives on, as when a page is closed."""
        self._socket.close()


def html(outputs: list[dict]) -> str:
    """All HTML among outputs."""
    return "\n".join(output["data"].get("text/html", "") for output in outputs if "data" in output)


def printed(outputs: list[dict]) -> str:
    """All text that was printed."""
    return "".join(output["text"] for output in outputs if output["kind"] == "stream")


def errors(outputs: list[dict]) -> list[str]:
    """What went wrong in the cells."""
    return [f"{output['ename']}: {output['evalue']}" for output in outputs if output["kind"] == "error"]
