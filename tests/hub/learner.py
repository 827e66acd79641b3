"""A learner as the hub sees one: logs in with the password, has a token, pulls the course and runs cells."""

import json
import time
import uuid
from urllib.parse import quote

import requests
import websocket


class Learner:
    """One learner, who is logged in if the password is right.

    Attributes:
        name: the learner's name on the hub.
        page: a session with the cookies of a browser.
        login: the hub's answer to the password; its status code is 302 if the password is right.
        token: a token that this learner has made; empty if the password is wrong.
    """

    def __init__(self, hub_url: str, name: str, password: str):
        self.name = name
        self.hub_url = hub_url
        self.page = requests.Session()
        self.page.get(f"{hub_url}/hub/login", timeout=60).raise_for_status()
        form = {"username": name, "password": password, "_xsrf": self._xsrf()}
        self.login = self.page.post(f"{hub_url}/hub/login", data=form, allow_redirects=False, timeout=60)
        self.token = self._make_token() if self.login.status_code == 302 else ""

    def _xsrf(self) -> str:
        """The hub's cookie against forged requests."""
        return next(cookie.value for cookie in self.page.cookies if cookie.name == "_xsrf" and "/hub" in cookie.path)

    def _make_token(self) -> str:
        address = f"{self.hub_url}/hub/api/users/{self.name}/tokens"
        answer = self.page.post(address, json={"note": "test"}, headers={"X-XSRFToken": self._xsrf()}, timeout=60)
        answer.raise_for_status()
        return answer.json()["token"]

    def request(self, path: str, method: str = "GET", **options) -> requests.Response:
        """Send a request with this learner's token; ``path`` begins after the hub's address."""
        headers = {"Authorization": f"token {self.token}"}
        address = f"{self.hub_url}/{path}"
        return requests.request(method, address, headers=headers, timeout=120, allow_redirects=False, **options)

    def start_server(self, timeout_s: float = 240) -> None:
        """Start this learner's server, and wait until it answers.

        The request is repeated until then. While the server starts, the hub ignores the request. If the server has
        ended, because another program took its port, the hub starts it again.
        """
        deadline_s = time.monotonic() + timeout_s
        while self.request(f"user/{self.name}/api/status").status_code != 200:
            assert time.monotonic() < deadline_s, f"no server for {self.name}"
            self.request(f"hub/api/users/{self.name}/server", "POST")
            time.sleep(0.1)

    def pull(self, repository: str, target: str) -> list[dict]:
        """Pull a repository with nbgitpuller, as its page does; returns what nbgitpuller reports."""
        words = f"repo={quote(repository, safe='')}&targetpath={target}&branch=main"
        lines = self.request(f"user/{self.name}/git-pull/api?{words}").text.splitlines()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]

    def run_cell(self, notebook: str, code: str) -> list[dict]:
        """Open a notebook in a new kernel and run one cell, as JupyterLab does; returns the cell's outputs."""
        session = {"path": notebook, "name": notebook, "type": "notebook", "kernel": {"name": "python3"}}
        answer = self.request(f"user/{self.name}/api/sessions", "POST", json=session)
        answer.raise_for_status()
        address = f"{self.hub_url}/user/{self.name}/api/kernels/{answer.json()['kernel']['id']}/channels"
        socket = websocket.create_connection(
            address.replace("http", "ws", 1), header=[f"Authorization: token {self.token}"], timeout=200
        )
        number = uuid.uuid4().hex
        header = {"msg_id": number, "msg_type": "execute_request", "username": "", "session": number, "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        request = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "buffers": []}
        socket.send(json.dumps(request | {"channel": "shell"}))
        outputs = []
        state = ""
        while state != "idle":
            message = json.loads(socket.recv())
            if message["parent_header"].get("msg_id") != number:
                continue
            state = message["content"].get("execution_state", state)
            if message["msg_type"] in ("stream", "display_data", "execute_result", "error"):
                outputs.append(message["content"])
        socket.close()
        return outputs
