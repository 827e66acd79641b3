"""Two learners on a real hub at once: each gets the course, runs chapter 00, keeps records, has an own server."""

import json
import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from learner import BOARD, Learner, errors, html, printed
from workshop import command, environment, running

ROOT = Path(__file__).parents[2]
CHAPTER = "notebooks/00_welcome.ipynb"
NAMES = ("ada", "bob")

pytestmark = [pytest.mark.hub, pytest.mark.xdist_group("hub"), pytest.mark.timeout(600)]


def cells():
    notebook = json.loads((ROOT / CHAPTER).read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def learners(hub, repository):
    """Both have followed the README's link, so both have the course."""
    found = {name: hub.learner(name) for name in NAMES}
    with ThreadPoolExecutor() as both:
        list(both.map(Learner.start_server, found.values()))
        pulled = list(both.map(lambda one: one.pull(repository, "dltutorial"), found.values()))
    assert [said[-1]["phase"] for said in pulled] == ["finished", "finished"], pulled
    return found


def run_chapter(learner):
    """Every code cell in order, then who and where this was; outputs, and that."""
    kernel = learner.open_notebook(f"dltutorial/{CHAPTER}")
    outputs = [output for source in cells() for output in kernel.run(source)]
    mine = f"record('whose', {len(learner.name)}, '{learner.name}')"
    about = "import os, json; print(json.dumps([os.getpid(), os.getcwd(), os.environ['JUPYTERHUB_USER']]))"
    said = kernel.run(f"{mine}\n{about}")
    kernel.close()
    return outputs, json.loads(printed(said))


@pytest.mark.parametrize("time", ["the first time", "the second time, on servers started anew"])
def test_two_learners_at_once_run_chapter_00_and_keep_their_own_records(hub, learners, time):
    if "second" in time:
        with ThreadPoolExecutor() as both:
            list(both.map(Learner.stop_server, learners.values()))
            list(both.map(Learner.start_server, learners.values()))
    before = {name: records(hub, name) for name in NAMES}
    with ThreadPoolExecutor() as both:
        found = dict(zip(NAMES, both.map(run_chapter, learners.values()), strict=True))
    wanted = sum(len(re.findall(r"^claim\(", cell, re.MULTILINE)) for cell in cells())
    for name, (outputs, (_, folder, user)) in found.items():
        assert errors(outputs) == []
        claims = re.findall(r'class="dlt-claim" role="note" aria-label="([^"]*)"', html(outputs))
        assert len(claims) == wanted > 0
        # Two learners on two cores: what rests on times may come out otherwise; nothing may fail.
        assert set(claims) <= {"shown", "not shown here", "otherwise on this machine"}
        assert "this machine, through JupyterHub" in html(outputs)
        assert user == name and f"/home/{name}/dltutorial/notebooks" in folder
        new = records(hub, name)[len(before[name]) :]
        assert [record["unit"] for record in new if record["what"] == "whose"] == [name]
        assert sum(record.get("kind") == "claim" for record in new) == wanted
    assert found["ada"][1][0] != found["bob"][1][0]


def records(hub, name):
    file = hub.folder / "state" / "home" / name / "dltutorial" / "notebooks" / "runs" / "records.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_each_server_answers_its_own_learner_only(hub, learners):
    ada, bob = learners.values()
    assert ada.token != bob.token
    assert ada.ask("api/contents").status_code == bob.ask("api/contents").status_code == 200
    for asked in (ada.ask("api/contents", whose="bob"), bob.ask("api/contents", whose="ada")):
        assert asked.status_code in (403, 404)
    nobody = Learner.__new__(Learner)
    nobody.name, nobody._hub, nobody.token = "ada", hub.url, "guessed"
    assert nobody.ask("api/contents").status_code in (302, 403)


def test_a_wrong_password_lets_nobody_in(hub):
    stranger = Learner(hub.url, "ada", "not the password")
    assert stranger.login.status_code == 403 and stranger.token == ""


def test_everything_listens_on_the_loopback_and_no_port_twice(hub, learners):
    places = [
        (place.laddr.ip, place.laddr.port)
        for process in hub.processes()
        for place in process.net_connections("inet")
        if place.status == psutil.CONN_LISTEN
    ]
    assert {ip for ip, _ in places} == {"127.0.0.1"}
    assert len(places) == len(set(places)) >= 5  # proxy, its interface, hub, two servers; kernels besides


def test_the_password_is_in_no_file_no_command_line_and_no_other_process(hub, learners):
    for process in hub.processes():
        assert hub.password not in " ".join(process.cmdline())
        if process.pid != hub.process.pid:
            assert hub.password not in process.environ().values()
    for file in (hub.folder / "state").rglob("*"):
        if file.is_file() and not file.is_symlink():
            assert hub.password.encode() not in file.read_bytes(), file
    assert (hub.folder / "state").stat().st_mode & 0o077 == 0  # other accounts of the machine see nothing of it


def test_tensorboard_comes_through_the_learners_own_server(hub, learners):
    ada, bob = learners.values()
    kernel = ada.open_notebook("dltutorial/notebooks/01_train_a_weather_model.ipynb")
    outputs = kernel.run(BOARD)
    assert errors(outputs) == []
    (address,) = re.findall(r'<iframe [^>]*src="/user/ada/([^"]*)"', html(outputs))
    assert re.fullmatch(r"proxy/\d+/[\w-]{32}/", address)
    assert "<title>TensorBoard</title>" in ada.ask(address).text
    (tags,) = ada.ask(f"{address}data/plugin/scalars/tags").json().values()
    assert list(tags) == ["train/loss"]
    assert bob.ask(address, whose="ada").status_code in (403, 404)
    assert html(kernel.run(BOARD.splitlines()[-1])).count(address) == 2  # the same board again
    kernel.close()


def test_the_readmes_link_opens_the_course(hub, learners, repository):
    text = (ROOT / "README.md").read_text()
    (link,) = re.findall(r"https://HUB(/hub/user-redirect/git-pull\?\S+)", text)
    page = learners["ada"].page.get(hub.url + link.replace("REPOSITORY", quote(repository, safe="")), timeout=60)
    assert page.status_code == 200
    assert page.url.startswith(f"{hub.url}/user/ada/git-pull?")
    assert repository in page.text and f"lab/tree/dltutorial/{CHAPTER}" in page.text
    opened = learners["ada"].ask(f"api/contents/dltutorial/{CHAPTER}").json()["content"]
    assert ["".join(cell["source"]) for cell in opened["cells"] if cell["cell_type"] == "code"] == cells()


def test_a_closed_terminal_ends_the_hub_with_its_proxy(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the hub would inherit that it is ignored
    try:
        with running(tmp_path) as hub:
            family = hub.processes()
            assert len(family) >= 2
            hub.process.send_signal(signal.SIGHUP)
            _, left = psutil.wait_procs(family, 60)
            assert left == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_without_a_password_or_a_proxy_the_hub_says_what_to_do(tmp_path):
    env = environment(tmp_path, 1, "short")
    said = subprocess.run(command(), env=env, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert said.returncode != 0 and "export one of at least 12" in said.stderr
    assert not (tmp_path / "state").exists()
