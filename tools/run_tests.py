"""make test: all tests, but the slow ones only where something changed since they passed.

    python tools/run_tests.py [--all]

The notebooks and the tests of what the package computes run every time. The tests marked slow (those that start other
programs, draw, search or execute lessons with other parameters) are left out when they have passed here before, with
the same bytes in every file of the project, the same Python and the same packages. --all runs them anyway.
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
    """A digest of everything that the outcome of a test may depend on."""
    digest = hashlib.sha256()
    packages = sorted(f"{package.name}=={package.version}" for package in distributions())
    digest.update(repr((sys.version, platform.platform(), platform.node(), packages)).encode())
    for path in files_of(root):
        digest.update(repr((path.relative_to(root).as_posix(), hashlib.sha256(path.read_bytes()).digest())).encode())
    return digest.hexdigest()


def main(root: Path = ROOT, arguments: list[str] = sys.argv[1:]) -> int:
    if unknown := set(arguments) - {"--all"}:
        print(f"{sys.argv[0]} knows --all, got {' '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    passed_on, state = root / PASSED_ON, state_of(root)
    passed = passed_on.is_file() and passed_on.read_text(encoding="utf-8") == state and not arguments
    if passed:
        print(
            "slow tests: they passed on these very files and are not repeated (make test ALL=1 repeats them)",
            flush=True,
        )
    status = subprocess.run(
        [sys.executable, "-m", "pytest", *(["-m", "not slow"] if passed else [])], cwd=root
    ).returncode
    if status == 0 and not passed and state_of(root) == state:
        passed_on.parent.mkdir(exist_ok=True)
        passed_on.write_text(state, encoding="utf-8")
    elif status != 0:
        passed_on.unlink(missing_ok=True)
    return status


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
