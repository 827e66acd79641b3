"""One call starts TensorBoard on the loopback, below a secret path. It ends with the process that started it."""

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request

import psutil
import pytest
from live import Notebook
from waiting import wait_for

from dltutorial.errors import CourseError
from dltutorial.record import board, track


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a<b>"
    tracker = track.Tracker(("tensorboard",), folder, {})
    for step in range(1, 4):
        tracker.log(step, {"train/loss": 1 / step})
    tracker.close()
    return folder


def read(place):
    with urllib.request.urlopen(f"http://127.0.0.1:{place}", timeout=60) as answer:
        return answer.read()


def test_tensorboard_shows_what_was_logged(run):
    place = board.start(run)
    assert b"<title>TensorBoard</title>" in read(place)
    tags = {}

    def loaded():
        tags.update(json.loads(read(f"{place}data/plugin/scalars/tags")))
        return tags

    wait_for(loaded)
    (name,) = tags
    assert list(tags[name]) == ["train/loss"]
    points = json.loads(read(f"{place}data/plugin/scalars/scalars?run={name}&tag=train%2Floss"))
    assert [(step, value) for _, step, value in points] == [(n, pytest.approx(1 / n)) for n in (1, 2, 3)]


def test_one_server_for_each_folder_listens_on_the_loopback_and_answers_only_below_its_secret_path(run):
    port, _, path = board.start(run).partition("/")
    assert board.start(run) == f"{port}/{path}"
    connections = psutil.Process().net_connections("inet")
    places = [c.laddr for c in connections if c.status == psutil.CONN_LISTEN and c.laddr.port == int(port)]
    assert [place.ip for place in places] == ["127.0.0.1"]
    assert len(path) > 30
    for wrong in ("/", "/data/runs", "/wrong/"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(f"{port}{wrong}")


def test_tensorboard_ends_with_its_process_and_prints_nothing_there(run):
    code = "import sys; from pathlib import Path; from dltutorial.record import board; import urllib.request as u\n"
    code += f"place = board.start(Path({str(run)!r})); u.urlopen('http://127.0.0.1:' + place).read()\n"
    code += "print(place.partition('/')[0], flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as starter:
        port = int(starter.stdout.readline())
        assert starter.communicate("") == ("", "")
    assert starter.returncode == 0
    assert port not in [c.laddr.port for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN]


def test_the_frame_uses_the_proxy_of_the_users_server_and_escapes_the_name_of_the_folder(monkeypatch):
    monkeypatch.delenv("JUPYTERHUB_SERVICE_PREFIX", raising=False)
    assert board.address("4321/secret/") == "/proxy/4321/secret/"  # jupyter-server-proxy is installed here
    monkeypatch.setattr(board.importlib.util, "find_spec", lambda name: None)
    assert board.address("4321/secret/") == "http://127.0.0.1:4321/secret/"
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ada/")
    assert board.address("4321/secret/") == "/user/ada/proxy/4321/secret/"
    page = board.frame('/proxy/1/"x/', "a<b>")
    assert '<iframe title="TensorBoard: a&lt;b&gt;" src="/proxy/1/&#34;x/"' in page
    assert "a<b>" not in page


def test_in_a_notebook_without_a_browser_one_line_names_the_command(run):
    code = "from dltutorial.record import board; board.show('a<b>'); print(board.start.cache_info().currsize)"
    messages = []
    with contextlib.closing(Notebook("python3", cwd=str(run.parent))) as notebook:
        reply = notebook.client.execute_interactive(code, timeout=120, output_hook=messages.append)
    assert reply["content"]["status"] == "ok"
    text = "".join(message["content"]["text"] for message in messages if message["msg_type"] == "stream")
    assert text == "in JupyterLab TensorBoard appears here; else: tensorboard --logdir a<b>\n0\n"


def test_a_folder_without_events_is_one_line(tmp_path):
    with pytest.raises(CourseError, match="or below; give the folder that holds some, or train with"):
        board.show(tmp_path)
