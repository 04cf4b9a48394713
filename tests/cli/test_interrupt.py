"""Ctrl-C in a command: one line on standard error, the exit code of the signal, nothing left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BEGIN = """
import multiprocessing, os, signal, sys, threading, time
from restack.cli.main import app, main
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it

def press():
    os.killpg(0, signal.SIGINT)  # as a terminal does, to all processes
"""
WAITING = (
    BEGIN
    + """
@app.command()
def wait():
    press()
    time.sleep(600)

sys.argv = ["restack", "wait"]
main()
"""
)
MEASURING = (
    BEGIN
    + """
def watch():
    while not multiprocessing.active_children():
        time.sleep(0.01)
    press()

threading.Thread(target=watch, daemon=True).start()
sys.argv = ["restack", "bench", *sys.argv[1:]]
main()
"""
)


def interrupted(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A script in a session of its own; it is over when all its processes are."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        start_new_session=True,
    )


def test_a_command_says_that_it_was_interrupted() -> None:
    ended = interrupted(WAITING)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")


def test_measuring_processes_end_without_a_word(models: dict[str, Path]) -> None:
    ended = interrupted(MEASURING, models["bert"], "--rounds", 1_000_000, "--device", "cpu")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")
