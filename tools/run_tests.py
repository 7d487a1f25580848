"""make test: all tests, but the slow ones only where something changed since they passed.

    python tools/run_tests.py [--all]

The notebooks and the quick tests run every time. The tests marked slow (those that start other programs, draw, search,
try the exercises' mistakes or execute lessons with other parameters) are left out when they have passed here before:
for the same user, with the same bytes in every file of the project, the same Python, packages and settings. --all runs
them anyway.
"""

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PASSED_ON = Path("build", "slow-tests-passed-on")
NOT_PART = (".git", ".venv*", "build", ".*_cache", ".hypothesis", "__pycache__", ".ipynb_checkpoints", "*.egg-info")

SETTINGS = ("PYTEST_ADDOPTS", "PYTHON", "HYPOTHESIS", "OMP_", "MKL_", "ATEN_", "CUDA_", "JUPYTER", "MPL", "LC_", "LANG")


def files_of(folder: Path) -> Iterator[Path]:
    """The files that a test could read: not those that programs make beside them."""
    for path in sorted(folder.iterdir()):
        if any(path.match(pattern) for pattern in NOT_PART):
            continue
        if path.is_dir():
            yield from files_of(path)
        elif path.is_file():
            yield path


def state_of(root: Path) -> str:
    """A digest of the files, the machine, Python, its packages, and the settings that these read."""
    digest = hashlib.sha256()
    packages = sorted(f"{package.name}=={package.version}" for package in distributions())
    settings = sorted(item for item in os.environ.items() if item[0].startswith(SETTINGS))
    user = os.geteuid() if hasattr(os, "geteuid") else None
    digest.update(repr((sys.version, platform.platform(), platform.node(), user, packages, settings)).encode())
    for path in files_of(root):
        digest.update(repr((path.relative_to(root).as_posix(), hashlib.sha256(path.read_bytes()).digest())).encode())
    return digest.hexdigest()


def main(root: Path, arguments: list[str]) -> int:
    if unknown := set(arguments) - {"--all"}:
        print(f"{sys.argv[0]} knows --all, got {' '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    passed_on, state = root / PASSED_ON, state_of(root)
    leave_out_slow = not arguments and passed_on.is_file() and passed_on.read_text(encoding="utf-8") == state
    if leave_out_slow:
        print(
            "slow tests: they passed on these very files and are not repeated (make test ALL=1 repeats them)",
            flush=True,
        )
    status = run_pytest(root, ["-m", "not slow"] if leave_out_slow else [])
    if status != 0:
        passed_on.unlink(missing_ok=True)
    elif not leave_out_slow and state_of(root) == state:
        passed_on.parent.mkdir(exist_ok=True)
        passed_on.write_text(state, encoding="utf-8")
    return status


def run_pytest(root: Path, options: list[str]) -> int:
    with subprocess.Popen([sys.executable, "-m", "pytest", *options], cwd=root) as tests:
        try:
            return tests.wait()
        except KeyboardInterrupt:  # pytest has had it as well, ends its kernels and prints its summary
            return tests.wait()


if __name__ == "__main__":
    sys.exit(main(ROOT, sys.argv[1:]))
