"""Two hosts: torchrun --nnodes 2 between two network namespaces, which share nothing but a wire."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from launching import run_ranks, torchrun

SCRIPT = Path(__file__).with_name("train.py")
HOSTS = [("ib-host-a", "veth-ib-a", "10.213.7.1"), ("ib-host-b", "veth-ib-b", "10.213.7.2")]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@pytest.fixture
def hosts() -> Iterator[None]:
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip to make network namespaces")
    try:
        for name, _, _ in HOSTS:
            ip("netns", "add", name)
        ip("link", "add", HOSTS[0][1], "type", "veth", "peer", "name", HOSTS[1][1])
        for name, wire, address in HOSTS:
            ip("link", "set", wire, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", wire)
            ip("-n", name, "link", "set", wire, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.decode().strip()}")
    finally:
        for name, _, _ in HOSTS:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def test_two_hosts_train_what_one_process_trains(hosts: None, tmp_path: Path) -> None:
    runs = tmp_path / "runs.json"
    runs.write_text(json.dumps([{"name": "hosts", "epochs": 3}]))
    started = []
    for number, (name, wire, _) in enumerate(HOSTS):
        where = [f"--node-rank={number}", f"--master-addr={HOSTS[0][2]}", "--master-port=29599"]
        launch = torchrun("--nnodes=2", "--nproc-per-node=1", *where, SCRIPT, runs, tmp_path)
        command = ["ip", "netns", "exec", name, *launch]
        env = {**os.environ, "GLOO_SOCKET_IFNAME": wire, "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    for process in started:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err[-3000:]
    run_ranks(1, SCRIPT, runs, tmp_path)
    alone = torch.load(tmp_path / "hosts.1.0", weights_only=True)
    for rank in range(2):
        there = torch.load(tmp_path / f"hosts.2.{rank}", weights_only=True)
        for mine, theirs in zip(there["log"], alone["log"], strict=True):
            assert torch.equal(mine["plan"], theirs["plan"])
            torch.testing.assert_close(mine["scores"], theirs["scores"], rtol=1e-4, atol=1e-6)
