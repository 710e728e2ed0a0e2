"""Play cases, each in a process of its own, so that a hang, a crash or an interrupt ends one case and no more."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import selectors
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

import infobatch

from . import kinds
from .oracle import FaultError
from .tally import Tally

HELD, REFUSED, FAULT = "held", "refused", "fault"
PACKAGE = os.path.dirname(infobatch.__file__)
SOAK = os.path.dirname(__file__)


@dataclass
class Outcome:
    """How one case ended."""

    kind: str
    seed: int
    result: str
    world: str = ""
    updates: int = 0
    """How many updates the oracle checked."""
    fault: str = ""
    refusals: tuple[str, ...] = ()
    trace: str = ""
    seconds: float = 0.0

    @property
    def signature(self) -> str:
        """The fault without its numbers: equal for what is probably one fault."""
        text = re.sub(r"sample \d+ has .*?(, the loss of|, not|, which)", r"a sample has a score\1", self.fault)
        text = re.sub(r"\[[^\]]*\]", "LIST", text)
        text = re.sub(r"/\S+", "PATH", text)
        return re.sub(r"-?[0-9][0-9.e+-]*", "#", text)


def play(kind: str, seed: int) -> Outcome:
    """Play one case in this process."""
    outcome, tally, began = Outcome(kind, seed, HELD), Tally(), time.monotonic()
    torch.manual_seed(seed)
    random.seed(seed)
    try:
        kinds.KINDS[kind].play(random.Random(f"{kind}/{seed}"), tally)
    except FaultError as error:
        outcome.result, outcome.fault = FAULT, str(error)
        outcome.trace = "".join(traceback.format_tb(error.__traceback__, -4))
    except infobatch.InfoBatchError as error:
        tally.refuse(error)
    except Exception as error:
        outcome.result, outcome.fault = FAULT, describe(error)
        outcome.trace = "".join(traceback.format_exception(error)[-8:])
    outcome.world, outcome.updates, outcome.refusals = tally.world, tally.updates, tuple(tally.refusals)
    if outcome.result == HELD and tally.refusals:
        outcome.result = REFUSED
    outcome.seconds = time.monotonic() - began
    return outcome


def describe(error: BaseException) -> str:
    """Say what was raised, and in which function of the package."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if frame.filename.startswith(PACKAGE)]
    where = "in the soak itself" if not inside else f"in {os.path.basename(inside[-1].filename)}, {inside[-1].name}()"
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__} {where}: {text[:160]}"


# ---- processes -------------------------------------------------------------------------------------------------


class Child:
    """One case in a process of its own."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.seed = kind, seed
        self.deadline = time.monotonic() + kinds.KINDS[kind].patience
        self.out, into = os.pipe()
        self.said = b""
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _perform(kind, seed, into)
        os.close(into)

    def read(self) -> bool:
        """Read what has come; return whether that was all."""
        some = os.read(self.out, 1 << 16)
        self.said += some
        return not some

    def end(self) -> Outcome:
        """End the process with all that it started, and return how the case ended."""
        late = time.monotonic() > self.deadline
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.out)
        if self.said.endswith(b"}"):
            values = json.loads(self.said)
            values["refusals"] = tuple(values["refusals"])
            return Outcome(**values)
        if late:
            patience = kinds.KINDS[self.kind].patience
            return Outcome(self.kind, self.seed, FAULT, fault=f"it hangs: not done after {patience} seconds")
        number = os.waitstatus_to_exitcode(status)
        return Outcome(self.kind, self.seed, FAULT, fault=f"its process died with exit status {number}")


def _perform(kind: str, seed: int, into: int) -> None:
    """In the new process: play the case and write how it ended."""
    try:
        os.setsid()
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        said = json.dumps(asdict(play(kind, seed))).encode()
        while said:
            said = said[os.write(into, said) :]
    finally:
        os._exit(0)


def run(cases: Iterator[tuple[str, int]], jobs: int, tell: Callable[[Outcome], Any]) -> None:
    """Play the cases, ``jobs`` at a time, and tell of each how it ended. On an interrupt all end."""
    running: dict[int, Child] = {}
    with selectors.DefaultSelector() as selector:
        try:
            more = True
            while more or running:
                while more and len(running) < jobs:
                    case = next(cases, None)
                    if case is None:
                        more = False
                        break
                    child = Child(*case)
                    running[child.out] = child
                    selector.register(child.out, selectors.EVENT_READ)
                ready = [key.fd for key, _ in selector.select(0.5)]
                now = time.monotonic()
                over = [fd for fd in ready if running[fd].read()]
                over += [fd for fd, child in running.items() if fd not in over and now > child.deadline]
                for fd in over:
                    selector.unregister(fd)
                    tell(running.pop(fd).end())
        finally:
            for child in running.values():
                child.end()
