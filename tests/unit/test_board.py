"""TensorBoard by one call: on the loopback, below a secret path, once for a folder, gone with its process."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import psutil
import pytest
from waiting import wait_for

from dltutorial.errors import CourseError
from dltutorial.record import board, track


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a<b>"
    tracker = track.tracker(("tensorboard",), folder, {})
    for step in range(1, 4):
        tracker.log(step, {"train/loss": 1 / step})
    tracker.close()
    return folder


@pytest.fixture(scope="module")
def shown(run):
    started = board.start(run)
    yield started
    started.close()


def read(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()


def test_it_shows_what_was_logged(shown):
    assert b"<title>TensorBoard</title>" in read(shown.address)
    tags = json.loads(read(shown.address + "data/plugin/scalars/tags"))
    (name,) = tags
    assert list(tags[name]) == ["train/loss"]
    points = json.loads(read(f"{shown.address}data/plugin/scalars/scalars?run={name}&tag=train%2Floss"))
    assert [(step, value) for _, step, value in points] == [(n, pytest.approx(1 / n)) for n in (1, 2, 3)]


def test_it_listens_on_the_loopback_only_and_answers_only_who_knows_its_path(shown):
    process = psutil.Process(shown._process.pid)
    places = [c.laddr for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert [(place.ip, place.port) for place in places] == [("127.0.0.1", shown.port)]
    assert len(shown.path) > 30 and shown.path[1:-1] not in " ".join(process.cmdline())
    for path in ("/", "/data/runs", "/wrong/"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(f"http://127.0.0.1:{shown.port}{path}")


def test_the_same_folder_is_shown_by_the_same_board_and_a_dead_one_is_replaced(run, shown):
    assert board.start(run) is shown
    os.kill(shown._process.pid, signal.SIGKILL)
    shown._process.wait()
    again = board.start(run)
    assert again is not shown and again.is_running()
    assert read(again.address)
    again.close()


def test_it_ends_with_the_process_that_started_it_also_when_that_is_killed(run):
    code = f"import time; from dltutorial.record import board; b = board.start({str(run)!r})\n"
    code += "print(b._process.pid, flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        process = psutil.Process(int(starter.stdout.readline()))
        assert process.is_running()
        starter.kill()
    wait_for(lambda: not process.is_running())


def test_without_a_notebook_the_address_is_printed(run, capsys):
    board.show(run)
    assert "TensorBoard of a<b>: http://127.0.0.1:" in capsys.readouterr().out
    board.start(run).close()


def test_a_folder_without_events_is_one_line(tmp_path):
    with pytest.raises(CourseError, match=r"no TensorBoard events in .*train with track"):
        board.show(tmp_path)


def test_on_a_hub_the_frame_goes_through_the_users_server(tmp_path):
    there = board.Board(tmp_path, 4321, "/secret/", None)
    assert board.address(there, {"JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"}) == "/user/ada/proxy/4321/secret/"
    assert board.address(there, {}) == board.address(there, {"JPY_PARENT_PID": "0"}) == "http://127.0.0.1:4321/secret/"


def test_the_frame_has_a_title_and_no_markup_of_a_folders_name(run):
    page = board.Frame('/proxy/1/"x/', run, 600)._repr_html_()
    assert '<iframe title="TensorBoard: a&lt;b&gt;" src="/proxy/1/&quot;x/"' in page
    assert "a<b>" not in page


def test_in_a_notebook_that_nobody_watches_one_line_says_how_to_see_it(run, tmp_path):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(run.parent), startup_timeout=120)
    said = []
    code = "from dltutorial.record import board; board.show('a<b>'); print(board._nth.cache_info().currsize)"
    reply = client.execute_interactive(code, timeout=120, output_hook=said.append)
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok"
    text = "".join(message["content"]["text"] for message in said if message["msg_type"] == "stream")
    assert text == "in JupyterLab TensorBoard appears here; from a terminal: tensorboard --logdir a<b>\n0\n"
