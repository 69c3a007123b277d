"""Running Python that a model wrote, in a directory that is thrown away.

A guard against accidents, not a wall against an attacker: the program runs in its own process
group, in a temporary directory, with an empty environment, under limits of CPU time, memory, file
size, open files and wall time. An audit hook, installed before the program's first line, refuses
sockets, child processes, and writing or deleting outside the directory. Record only with models
whose output you would run in a scratch account.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

CPU_SECONDS = 5
WALL_SECONDS = 10.0
MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
OUTPUT_CHARS = 1200

_LIMITS = [
    (int(resource.RLIMIT_CPU), CPU_SECONDS),
    (int(resource.RLIMIT_AS), MEMORY_BYTES),
    (int(resource.RLIMIT_FSIZE), FILE_BYTES),
    (int(resource.RLIMIT_NOFILE), 64),
    (int(resource.RLIMIT_CORE), 0),
]

# Runs inside the child, which sets its own limits: a hook between fork and exec is not safe in a
# process that has threads. argv: directory, then the script and its arguments.
_GUARD = r"""
import os, resource, runpy, sys
for kind, value in LIMITS:
    resource.setrlimit(kind, (value, value))
root = os.path.realpath(sys.argv[1])
sys.argv = sys.argv[2:]
sys.path.insert(0, root)
sys.dont_write_bytecode = True
def outside(path):
    if isinstance(path, int) or path is None:
        return False
    path = os.path.realpath(os.fsdecode(path))
    return path != root and not path.startswith(root + os.sep)
barred = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn",
          "os.spawn", "os.kill", "pty.", "ctypes.", "shutil.", "ftplib.", "urllib.")
changing = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link",
            "os.symlink", "os.truncate", "os.utime")
def guard(event, args):
    if event.startswith(barred):
        raise PermissionError(f"the sandbox does not allow {event}")
    if event.startswith(changing) and any(outside(a) for a in args if isinstance(a, (str, bytes))):
        raise PermissionError(f"the sandbox does not allow {event} outside its directory")
    if event == "open":
        path, mode, flags = args
        writing = (isinstance(mode, str) and any(c in mode for c in "wax+")) or (
            isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if writing and outside(path):
            raise PermissionError("the sandbox does not allow writing outside its directory")
sys.addaudithook(guard)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_python(directory: Path, script: str, *arguments: str) -> str:
    """Run ``script`` (a path inside ``directory``); output and errors as one text, shortened.

    Never raises for what the program does: a crash, a refusal or a timeout is part of the text.
    """
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"LIMITS = {_LIMITS}\n{_GUARD}",
        str(directory),
        script,
        *arguments,
    ]
    with subprocess.Popen(
        command,
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            raw, _ = process.communicate(timeout=WALL_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raw, _ = process.communicate()
            raw += f"\nstopped after {WALL_SECONDS:g} s".encode()
    text = raw.decode("utf-8", "replace").replace(str(directory), ".").strip()
    if process.returncode and "Traceback" not in text and process.returncode < 0:
        text += f"\nkilled by signal {-process.returncode}"
    return shorten(text) or "(no output)"


def shorten(text: str, limit: int = OUTPUT_CHARS) -> str:
    """At most ``limit`` characters, the middle left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - limit} characters left out ...]\n{text[-half:]}"
