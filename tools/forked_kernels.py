"""Kernels for the test run: each is forked from a process that has imported torch, not started from nothing.

Starting Python, importing torch and Matplotlib takes most of the time of a notebook, and is the same for all. A kernel
finds in `sys.modules` what that process has imported; its names, its memory and `attention_core` are its own. For Linux
only: on other systems a fork after such imports is not safe. `make run` starts every kernel from nothing.
"""

import multiprocessing
import os
import sys
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


def use_forked_kernels() -> None:
    """From now on this process forks its kernels; the process they are forked from starts with the first."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(IMPORTED)
    factory = KernelProvisionerFactory.instance()
    factory.provisioners[NAME] = EntryPoint(NAME, "forked_kernels:ForkedKernel", factory.GROUP_NAME)
    factory.default_provisioner_name = NAME


class ForkedKernel(LocalProvisioner):
    """How jupyter_client starts a kernel, watches and ends it."""

    async def launch_kernel(self, cmd: list[str], **options: Any) -> Any:
        arguments = cmd[cmd.index("ipykernel_launcher") + 1 :]
        listening, tell = multiprocessing.Pipe(duplex=False)
        folder = str(options.get("cwd") or os.getcwd())
        self.process = Forked(_be_a_kernel, arguments, folder, options["env"], tell)
        self.pid = self.process.pid
        tell.close()
        listening.poll(timeout=60)  # a client that connects too early waits in vain, and begins again
        return self.connection_info


class Forked:
    """A process of multiprocessing with the methods of subprocess.Popen that a provisioner calls."""

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
            os.kill(self.pid, number)


def _be_a_kernel(arguments: list[str], folder: str, environment: dict[str, str], tell: Connection) -> None:
    os.setsid()  # Ctrl-C in the terminal is for pytest, which then ends its kernels
    Thread(target=_end_with_the_parent, daemon=True).start()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.environ.update(environment)
    os.chdir(folder)

    from ipykernel.kernelapp import IPKernelApp

    app = IPKernelApp.instance(config=Config({"HistoryManager": {"enabled": False}}))
    app.initialize(arguments)
    tell.send("listening")
    app.start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
