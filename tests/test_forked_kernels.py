"""Kernels that are forked for the test run: as good as those started from nothing, and gone when they should be."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forked_kernels
import nbformat
import pytest
from jupyter_client.provisioning import KernelProvisionerFactory
from nbclient import NotebookClient
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, RunningKernel
from run_notebooks import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not forked_kernels.AVAILABLE, reason="kernels are forked on Linux only"),
]


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., RunningKernel]]:
    """Starts kernels as nbval does in this run; those still there at the end are stopped."""
    if request.config.option.fresh_kernels:
        pytest.skip("this run starts its kernels from nothing")
    kernels = []

    def start_one(folder: Path = ROOT) -> RunningKernel:
        kernels.append(RunningKernel(CURRENT_ENV_KERNEL_NAME, cwd=str(folder)))
        return kernels[-1]

    yield start_one
    for kernel in kernels:
        if kernel.is_alive():
            kernel.stop()


def printed(kernel: RunningKernel, source: str) -> str:
    request = kernel.execute_cell_input(source)
    kernel.await_reply(request, 60)
    text = ""
    while True:
        message = kernel.get_message("iopub", timeout=60)
        if message["parent_header"].get("msg_id") != request:
            continue
        text += message["content"].get("text", "") + "\n".join(message["content"].get("traceback", []))
        if message["content"].get("execution_state") == "idle":
            return text.strip()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def soon(is_so: Callable[[], bool]) -> bool:
    """Usually within a second; a minute is for loaded machines."""
    end = time.monotonic() + 60
    while not is_so() and time.monotonic() < end:
        os.sched_yield()
    return is_so()


def test_a_kernel_has_its_imports_and_not_attention_core(start: Callable[..., RunningKernel]) -> None:
    kernel = start()
    code = f"import sys; print([name in sys.modules for name in {[*forked_kernels.IMPORTED, 'attention_core']}])"
    assert printed(kernel, code) == str([True] * len(forked_kernels.IMPORTED) + [False])
    assert "NameError" in printed(kernel, "torch"), "no name is there before a cell imports it"


def test_a_kernel_finds_what_a_fresh_one_finds(start: Callable[..., RunningKernel], tmp_path: Path) -> None:
    """The folders that pytest added are not on its path; IPython puts the folder it works in first."""
    code = "import sys, matplotlib; print(sys.path, matplotlib.rcParams['backend'])"
    cell = nbformat.v4.new_code_cell(code)
    client = NotebookClient(nbformat.v4.new_notebook(cells=[cell]), resources={"metadata": {"path": str(tmp_path)}})
    factory = KernelProvisionerFactory.instance()
    factory.default_provisioner_name = "local-provisioner"
    try:
        client.execute(stderr=subprocess.DEVNULL)
    finally:
        factory.default_provisioner_name = forked_kernels.NAME
    assert printed(start(tmp_path), code) == cell.outputs[0].text.strip()


def test_kernels_share_nothing(start: Callable[..., RunningKernel]) -> None:
    first, second = start(), start()
    printed(first, "import torch; torch.manual_seed(5); torch.set_default_dtype(torch.float64); x = 1")
    assert printed(second, "import torch; print('x' in dir(), torch.get_default_dtype())") == "False torch.float32"
    assert first.km.provisioner.pid != second.km.provisioner.pid


def test_a_kernel_works_in_its_folder_with_the_environment_of_now(
    start: Callable[..., RunningKernel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os; print(os.getcwd(), os.environ.get('ONLY_NOW'))"
    monkeypatch.setenv("ONLY_NOW", "yes")
    assert printed(start(tmp_path), code) == f"{tmp_path} yes"
    monkeypatch.delenv("ONLY_NOW")
    assert printed(start(tmp_path), code) == f"{tmp_path} None"


def test_a_kernel_that_is_stopped_or_dies_is_gone(start: Callable[..., RunningKernel]) -> None:
    for end in (
        lambda kernel: kernel.stop(),
        lambda kernel: os.kill(kernel.km.provisioner.pid, signal.SIGKILL),
    ):
        kernel = start()
        pid = kernel.km.provisioner.pid
        assert is_alive(pid)
        end(kernel)
        assert soon(lambda pid=pid: not is_alive(pid))
        assert soon(lambda kernel=kernel: not kernel.is_alive())


def test_a_program_that_a_cell_started_ends_with_the_kernel(start: Callable[..., RunningKernel]) -> None:
    kernel = start()
    code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"
    pid = int(printed(kernel, code))
    assert is_alive(pid)
    kernel.stop()
    assert soon(lambda: not is_alive(pid))


def test_an_interrupt_reaches_the_cell(start: Callable[..., RunningKernel]) -> None:
    kernel = start()
    request = kernel.execute_cell_input("import os\nprint('begun', flush=True)\nwhile True: pass")
    while kernel.get_message("iopub", timeout=60)["content"].get("text", "").strip() != "begun":
        pass
    kernel.interrupt()
    kernel.await_reply(request, 60)
    assert printed(kernel, "print('still here')") == "still here"


def test_kernels_end_with_the_process_that_asked_for_them(tmp_path: Path) -> None:
    program = tmp_path / "asks.py"
    program.write_text(
        "import sys, time\n"
        f"sys.path.insert(0, {str(Path(forked_kernels.__file__).parent)!r})\n"
        "import forked_kernels\n"
        "from nbval.kernel import CURRENT_ENV_KERNEL_NAME, RunningKernel\n"
        "if __name__ == '__main__':\n"
        "    forked_kernels.use_forked_kernels()\n"
        "    kernel = RunningKernel(CURRENT_ENV_KERNEL_NAME)\n"
        "    print(kernel.km.provisioner.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as asking:
        pid = int(asking.stdout.readline())
        assert is_alive(pid)
        asking.kill()
    assert soon(lambda: not is_alive(pid))
