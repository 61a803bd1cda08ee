"""Random command sequences at the prompts of real stopped ranks, by clients that are killed at random moments.

`python prompt_fuzz.py RUN COUNT SEED` ends with an error when a rank was freed that nobody told to go, or does not
answer any more. Clients are forks of this process; it has no threads while it forks. What a client begins it says
first, through a pipe that outlives it.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from rldbg.core import RldbgError
from rldbg.live import BrokerClient, BrokerDebuggee, PdbCommands

PROGRAM = """
import os, threading, time
def helper(event):
    while not event.wait(0.05):
        rounds = 1
def body(i, total):
    total = total + i
    for part in (1, 2):
        total += part
    return total
def once(i):
    total = body(i, 0)
    time.sleep(0.001)
    text = str(total)
    return len(text)
event = threading.Event()
threading.Thread(target=helper, args=(event,), daemon=True).start()
i = 0
breakpoint()
while True:
    try:
        once(i)
    except (NameError, TypeError):
        skipped = "a jump left out an assignment"
    i += 1
"""
LINES = PROGRAM.count("\n") + 2
LOOKING = ["p i", "p total", "w", "l", "ll", "a", "u", "d", "f 1", "threads", "locals", "whatis event", "exc", "h",
           "p 1/0", "p nothing", "!mine = 3", "!raise ValueError", "display i", "undisplay i", "x = = 2", "p '\\udc80'",
           "thread 1", "thread 99", "cl", "condition 1 i", "p __import__('time').sleep(0.2)", "tbreak nowhere",
           "p open('/nowhere')", "b", "alias", "!__import__('sys').stdout.flush()"]  # fmt: skip
STEPPING = ["n", "s", "j", "unt"]
GOING = ["c", "r"]
PATIENCE_S = 60.0


def one_sequence(chance):
    """A random sequence; most of them free nobody."""
    words = LOOKING if chance.random() < 0.5 else LOOKING + STEPPING * 6 + (GOING * 4 if chance.random() < 0.5 else [])
    commands = []
    for _ in range(chance.randint(1, 6)):
        word = chance.choice(words)
        if word == "j" or (word == "unt" and chance.random() < 0.5):
            word = f"{word} {chance.randint(1, LINES)}"
        commands.append(word)
    if chance.random() < 0.1:
        commands.insert(0, f"tbreak {chance.randint(1, LINES)}")
    return commands


def play(run, pid, commands, says):
    """In the fork: a client of its own."""
    try:
        with BrokerClient(run) as client:
            prompt = PdbCommands(BrokerDebuggee(client, f"@{pid}", stop=False), wait_s=2.0)
            for command in commands:
                os.write(says, f"{command}\n".encode())
                try:
                    left = prompt.execute(command).left
                except RldbgError:
                    # Another client may have taken it away; that is an answer too.
                    left = True
                if left:
                    break
    except RldbgError:
        pass
    finally:
        os._exit(0)


def start_client(run, pid, commands, kill_after_s):
    """The fork's process id, where to read what it began, and when it is to be killed."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        play(run, pid, commands, writes)
    os.close(writes)
    return child, reads, time.monotonic() + kill_after_s if kill_after_s else None


def end_client(child, reads, kill_at):
    """What it had begun."""
    deadline = time.monotonic() + PATIENCE_S
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            raise SystemExit(f"client {child} got no answer within {PATIENCE_S} s")
        if kill_at is not None and time.monotonic() >= kill_at:
            os.kill(child, signal.SIGKILL)
            kill_at = None
        time.sleep(0.002)
    with open(reads, encoding="utf-8") as pipe:
        return pipe.read().split("\n")[:-1]


class Ranks:
    """The ranks as an independent client sees them."""

    def __init__(self, run):
        self.run = run

    def look(self, pids, told):
        """Checks every rank after a round and brings all of them back to a stop; `told` is what each was told."""
        with BrokerClient(self.run) as client:
            client.request("break_clear")
            for pid in pids:
                begun = told.get(pid, {"c"})
                words = {command.split(" ")[0] for command in begun}
                if not words & {"c", "r", "unt"}:
                    self._expect_stop(client, pid, begun)
                prompt = PdbCommands(BrokerDebuggee(client, f"@{pid}", stop=True))
                answer = prompt.execute("p 6 * 7")
                if answer.text != "42":
                    raise SystemExit(f"{pid} does not answer after {begun}: {answer.text}")

    def place(self, pids):
        with BrokerClient(self.run) as client:
            found = {}
            for pid in pids:
                # Attached: a stop that was only announced has come by then, one line further.
                prompt = PdbCommands(BrokerDebuggee(client, f"@{pid}", stop=True))
                i = prompt.execute("p __import__('__main__').i").text
                found[pid] = (prompt.debuggee.facts["file"], prompt.debuggee.facts["line"], i)
            return found

    def _expect_stop(self, client, pid, begun):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            (facts,) = [p for p in client.request("ps")["processes"] if p["pid"] == pid]
            if facts["state"] == "stopped" and facts["debugged"]:
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"{pid} is {facts['state']} and was told {begun}")
            time.sleep(0.01)


def fuzz(run, count, seed):
    chance = random.Random(seed)
    ranks = Ranks(run)
    with BrokerClient(run) as client:
        pids = [p["pid"] for p in client.request("ps")["processes"]]
    done = killed = 0
    while done < count:
        before = ranks.place(pids)
        clients = []
        for _ in range(min(3, count - done)):
            pid, kill_after_s = chance.choice(pids), chance.choice([0, 0, chance.random() * 0.3])
            clients.append((pid, *start_client(run, pid, one_sequence(chance), kill_after_s)))
            done += 1
        told, history = {pid: set() for pid in pids}, []
        for pid, child, reads, kill_at in clients:
            begun = end_client(child, reads, kill_at)
            history.append((pid, begun, "killed" if kill_at else ""))
            told[pid].update(begun)
            killed += kill_at is not None
        try:
            ranks.look(pids, told)
        except SystemExit as error:
            raise SystemExit(f"{error}; before: {before}; clients: {history}") from None
        after = ranks.place(pids)
        for pid in pids:
            words = {command.split(" ")[0] for command in told[pid]}
            if not words & {*STEPPING, *GOING} and after[pid] != before[pid]:
                raise SystemExit(f"{pid} moved from {before[pid]} to {after[pid]} and was told {told[pid]}")
    sys.stdout.write(f"{done} sequences, {killed} clients killed\n")


if __name__ == "__main__":
    fuzz(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
