"""Settings of the test run."""

import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import forked_kernels
import pytest
from nbval.plugin import IPyNbCell
from notebook_cells import ExactCell, TolerantCell

if TYPE_CHECKING:
    from in_process import ExecutedCell

if "PYTEST_XDIST_WORKER" in os.environ:
    # one core for each worker: threads of several kernels that wait for each other cost minutes
    os.environ.setdefault("OMP_NUM_THREADS", "1")

SLOW_FILE = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.slow\b", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tolerant",
        action="store_true",
        help="compare printed numbers of 4 or more decimals within one unit of their last place; for other processors",
    )
    parser.addoption("--all-alterations", action="store_true", help="try every alteration of the notebooks, not a few")
    parser.addoption("--fresh-kernels", action="store_true", help="start every notebook's kernel from nothing")
    parser.addoption("--order-seed", type=int, help="repeat the order of files that a run with this seed had")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.order_seed is None:  # workers inherit the environment of the process that started them
        drawn = str(random.SystemRandom().randrange(10**6))
        config.option.order_seed = int(os.environ.setdefault("PYTEST_ORDER_SEED", drawn))
    if forked_kernels.AVAILABLE and not config.option.fresh_kernels:
        forked_kernels.use_forked_kernels()


def pytest_report_header(config: pytest.Config) -> str:
    return f"files in random order: --order-seed={config.option.order_seed}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests are left out, files that hold nothing else are not even imported."""
    if config.option.markexpr == "not slow" and collection_path.match("tests/test_*.py"):
        return bool(SLOW_FILE.search(collection_path.read_text(encoding="utf-8"))) or None
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, IPyNbCell):
        item.__class__ = TolerantCell if item.config.option.tolerant else ExactCell


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle whole files; within a file, and so within a notebook, the order stays. Slow files come first, then long
    notebooks, so that no worker is left alone with one at the end."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    names = sorted(files)
    random.Random(config.option.order_seed).shuffle(names)
    names.sort(key=lambda name: (not _is_slow(files[name]), -_cells(files[name])))
    items[:] = [item for name in names for item in files[name]]


def _is_slow(items: list[pytest.Item]) -> bool:
    return any(item.get_closest_marker("slow") for item in items)


def _cells(items: list[pytest.Item]) -> int:
    return sum(isinstance(item, IPyNbCell) for item in items)


@pytest.fixture(scope="session")
def executed(tmp_path_factory: pytest.TempPathFactory) -> "Callable[[Path], list[ExecutedCell]]":
    """Executes a notebook in this process, once for all workers of a test run."""
    import in_process  # here, since only some tests need torch
    from filelock import FileLock

    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def execute(path: Path) -> "list[ExecutedCell]":
        kept = folder / f"{path.parent.name}-{path.stem}.json"
        with FileLock(f"{kept}.lock"):
            if not kept.is_file():
                kept.write_text(in_process.to_json(in_process.execute(path)), encoding="utf-8")
            return in_process.from_json(kept.read_text(encoding="utf-8"))

    return execute
