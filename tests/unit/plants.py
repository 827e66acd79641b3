"""Runs with one bottleneck each, planted so large that a busy machine does not hide it.

Each is (what is planted, loader, step, the verdict that is right). What a wait stands for is said where it is planted:
a file server, a log server. The rest is real work.
"""

import contextlib
import os
import queue
import socket
import threading
import time
import timeit

import numpy as np
import torch
from torch import nn

from dltutorial.profile import detective
from dltutorial.profile.ranges import annotate

WAIT_S = 0.02


def a_batch():
    return torch.randn(16, 64), torch.randn(16, 64)


def quick_loader():
    kept = a_batch()
    while True:
        yield kept


def slow_server():
    """Each batch waits for the answer of a file server under load."""
    kept = a_batch()
    while True:
        time.sleep(WAIT_S)
        yield kept


def slow_stream(n_bytes=1 << 15):
    """Each batch arrives through a socket whose sender is slow."""
    kept, end = a_batch(), threading.Event()
    sender, receiver = socket.socketpair()

    def send():
        while not end.wait(WAIT_S):
            with contextlib.suppress(OSError):
                sender.sendall(bytes(n_bytes))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        while True:
            left = n_bytes
            while left:
                left -= len(receiver.recv(left))
            yield kept
    finally:
        end.set()
        receiver.close()  # first: the thread may be waiting for room to send
        thread.join()
        sender.close()


def slow_augmentation():
    rng = np.random.default_rng(0)
    while True:
        x = rng.random((400, 1000))
        np.sort(x, axis=1)
        np.fft.fft(x)
        yield a_batch()


def slow_python(seconds=0.008):
    """Preparation in plain Python, which holds the interpreter's lock."""
    while True:
        end_s = time.thread_time() + seconds
        while time.thread_time() < end_s:
            sum(range(200))
        yield a_batch()


def beside(make):
    """A loader in a thread of its own, two batches ahead."""

    def batches():
        ready, end = queue.Queue(2), threading.Event()

        def load():
            for batch in make():
                while not end.is_set():
                    with contextlib.suppress(queue.Full):
                        ready.put(batch, timeout=0.02)
                        break
                if end.is_set():
                    return

        thread = threading.Thread(target=load, daemon=True)
        thread.start()
        try:
            while True:
                yield ready.get()
        finally:
            end.set()
            thread.join()

    return batches


class Busy(torch.utils.data.Dataset):
    """Samples that cost a core some seconds each."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        end_s = time.process_time() + self.seconds
        while time.process_time() < end_s:
            np.sort(np.arange(2000.0)[::-1])
        return np.zeros(4, np.float32)


def on_all_cores(step):
    """The step, whatever number of threads the tests run with."""

    def run(batch):
        threads = torch.get_num_threads()
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        step(batch)
        torch.set_num_threads(threads)

    return run


def busy_workers(step, batch_size=4):
    """More loading processes than cores; all cores together load a batch in the time of a step."""
    cores = len(os.sched_getaffinity(0))
    step_s = min(timeit.repeat(lambda: step(None), number=1, repeat=5))
    data = Busy(cores * step_s / batch_size)
    return torch.utils.data.DataLoader(data, batch_size=batch_size, num_workers=cores + 1, prefetch_factor=1)


def small_step(after=lambda: None):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step(batch):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
        optimizer.step()
        batch[0].mean().item()
        after()

    return step


def waiting_for_a_log_server():
    """Every step hands its loss to a server that answers late."""
    with annotate("log"):
        time.sleep(WAIT_S)


def writing_to_a_slow_reader():
    """Every step prints into a pipe that is read slowly, as a terminal far away."""
    source, target = os.pipe()

    def read():
        while True:
            time.sleep(WAIT_S)
            os.read(source, 4096)

    threading.Thread(target=read, daemon=True).start()
    return lambda: os.write(target, bytes(4096))


def many_layers():
    weights = [torch.randn(4, 4, requires_grad=True) for _ in range(80)]
    optimizer = torch.optim.Adam(weights, foreach=False)

    def step(batch):
        x = batch[0][:4, :4]
        for weight in weights:
            x = torch.tanh(x @ weight)
        optimizer.zero_grad()
        x.sum().backward()
        optimizer.step()

    return step


def many_small_operators(n=1000):
    x = torch.randn(8)

    def step(batch):
        y = x
        for _ in range(n):
            y = (y * 1.01).sin()

    return step


def large_additions():
    x, y, z = (torch.ones(1 << 23) for _ in range(3))

    def step(batch):
        torch.add(x, z, out=y)
        torch.mul(x, z, out=y)
        y.add_(z)

    return step


def large_optimizer():
    weight = nn.Parameter(torch.randn(1 << 22))
    weight.grad = torch.randn(1 << 22)
    optimizer = torch.optim.AdamW([weight])
    return lambda batch: optimizer.step()


def large_product():
    model, x = nn.Linear(1024, 1024), torch.randn(512, 1024)

    def step(batch):
        model.zero_grad()
        model(x).square().mean().backward()

    return step


def convolutions():
    model = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.Conv2d(64, 32, 3, padding=1))
    x = torch.randn(8, 32, 32, 32)
    return lambda batch: model(x).mean().backward()


def planted():
    """All of them, made afresh."""
    product = on_all_cores(large_product())
    return [
        ("a slow file server", slow_server, small_step(), detective.READ),
        ("a slow stream", slow_stream, small_step(), detective.READ),
        ("sorting and Fourier transforms", slow_augmentation, small_step(), detective.PREPARE),
        ("the same beside the step", beside(slow_augmentation), small_step(), detective.PREPARE),
        ("many layers of four numbers", quick_loader, many_layers(), detective.LAUNCHES),
        ("many small operators", quick_loader, many_small_operators(), detective.LAUNCHES),
        ("large additions", quick_loader, large_additions(), detective.BANDWIDTH),
        ("a large optimizer", quick_loader, large_optimizer(), detective.BANDWIDTH),
        ("a large matrix product", quick_loader, large_product(), detective.COMPUTE),
        ("convolutions", quick_loader, convolutions(), detective.COMPUTE),
        ("the interpreter's lock", beside(slow_python), many_small_operators(), detective.CONTENTION),
        ("more workers than cores", busy_workers(product), product, detective.CONTENTION),
        ("a log server", quick_loader, small_step(waiting_for_a_log_server), detective.SYNCHRONISATION),
        ("a slow reader", quick_loader, small_step(writing_to_a_slow_reader()), detective.SYNCHRONISATION),
    ]
