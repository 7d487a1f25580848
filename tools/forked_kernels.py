"""Kernels for the test run: each is forked from a process that has imported torch, not started from nothing.

Starting Python, importing torch and Matplotlib takes most of the time of a notebook, and is the same for all. A kernel
finds in `sys.modules` what that process has imported; its names, its memory and `attention_core` are its own. For Linux
only: on other systems a fork after such imports is not safe. The first kernel of a test worker starts the process that
is forked. `make run` starts every kernel from nothing, and so does `pytest --fresh-kernels`.
"""

import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import EntryPoint
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any

from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner
from traitlets.config import Config

AVAILABLE = sys.platform == "linux"
IMPORTED = ["ipykernel.debugger", "ipykernel.kernelapp", "matplotlib.figure", "psutil", "torch"]
NAME = "forked"
SECONDS_TO_START = 60


def use_forked_kernels() -> None:
    """From now on this process forks its kernels."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(IMPORTED)
    factory = KernelProvisionerFactory.instance()
    factory.provisioners[NAME] = EntryPoint(NAME, "forked_kernels:ForkedKernel", factory.GROUP_NAME)
    factory.default_provisioner_name = NAME


class ForkedKernel(LocalProvisioner):
    """How jupyter_client starts a kernel, watches and ends it."""

    async def launch_kernel(self, cmd: list[str], **options: Any) -> Any:
        arguments = cmd[cmd.index("ipykernel_launcher") + 1 :]
        folder = str(options.get("cwd") or os.getcwd())
        reader, writer = multiprocessing.Pipe(duplex=False)
        self.process = ForkedProcess(_be_a_kernel, arguments, folder, options["env"], _path_of_a_new_python(), writer)
        self.pid = self.pgid = self.process.pid
        writer.close()
        if not reader.poll(SECONDS_TO_START):  # a client that asks before the kernel listens loses half a second
            raise RuntimeError(f"the kernel did not start within {SECONDS_TO_START} seconds")
        return self.connection_info


class ForkedProcess:
    """A process of multiprocessing with those methods of subprocess.Popen that its users here call."""

    stdin = stdout = stderr = None

    def __init__(self, function: Any, *arguments: Any) -> None:
        forkserver = multiprocessing.get_context("forkserver")
        self._process: BaseProcess = forkserver.Process(target=function, args=arguments, daemon=True)
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None and self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def _path_of_a_new_python() -> list[str]:
    """Without the folders that pytest has added to this one's."""
    program = "import json, sys; print(json.dumps(sys.path[1:]))"
    found: list[str] = json.loads(subprocess.check_output([sys.executable, "-c", program]))
    return found


def _be_a_kernel(
    arguments: list[str], folder: str, environment: dict[str, str], path: list[str], writer: Connection
) -> None:
    os.setsid()  # Ctrl-C in the terminal is for pytest, which then ends its kernels
    Thread(target=_end_with_the_parent, daemon=True).start()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    sys.path[:], sys.argv[1:] = path, arguments
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)

    import matplotlib
    from ipykernel.kernelapp import IPKernelApp

    app = IPKernelApp.instance(config=Config({"HistoryManager": {"enabled": False}}))
    app.initialize(arguments)
    if "MPLBACKEND" in os.environ:
        matplotlib.rcParams["backend"] = os.environ["MPLBACKEND"]  # ipykernel's, set after Matplotlib was imported
    writer.send("listening")
    app.start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
