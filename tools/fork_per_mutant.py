"""Runs collected tests once for every mutant that mutmut has generated, each time in a fork of this process.

mutmut's own runner collects the tests anew for every mutant, which here takes longer than running them. What it
generates is used as it is: each function asks the variable MUTANT_UNDER_TEST which version of it is to run.

    cd FOLDER/mutants && python fork_per_mutant.py NAMES.json RESULTS.json MINUTES TEST ...
"""

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from mutmut.configuration import config
from mutmut.state import state
from tqdm import tqdm

MEMORY = 12 * 2**30  # bytes of address space for one mutant
GRACE = 20  # seconds beyond ten times what the tests take without a mutation


class ForkPerMutant:
    def __init__(self, names: list[str], results: Path, minutes: float) -> None:
        self.names, self.results, self.minutes = names, results, minutes
        self.statuses: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.running: dict[int, tuple[str, float]] = {}  # process: mutant, when to kill it

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        callers = self.run_without_mutant(session.items)
        end = time.monotonic() + 60 * self.minutes
        for name in tqdm(self.names, mininterval=5, maxinterval=30):
            if time.monotonic() > end:
                break
            items = sorted(callers.get(name.rpartition("__mutmut_")[0], []), key=lambda item: self.seconds[item.nodeid])
            if not items:
                self.statuses[name] = "called by no test"
                continue
            while len(self.running) >= (os.cpu_count() or 1):
                self.wait()
            self.start(name, items)
        while self.running:
            self.wait()
        self.results.write_text(json.dumps(self.statuses, indent=1), "utf-8")
        return True

    def run_without_mutant(self, items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
        """The tests that call each function; without those that mutmut's wrapping alone makes fail."""
        config()  # mutmut reads its settings in the folder where it is first asked, and lessons change the folder
        os.environ["MUTANT_UNDER_TEST"] = "stats"
        callers: dict[str, list[pytest.Item]] = {}
        failing = []
        for item in tqdm(items, mininterval=5, maxinterval=30):
            state()._stats.clear()
            started = time.monotonic()
            if not passes(item):
                failing.append(item.nodeid)
                continue
            self.seconds[item.nodeid] = time.monotonic() - started
            for function in state()._stats:
                callers.setdefault(function, []).append(item)
        print(
            f"{len(items)} tests, {len(failing)} left out, since they fail without a mutant too:", *failing, sep="\n  "
        )
        if 20 * len(failing) > len(items):
            pytest.exit("too many tests fail without a mutant", returncode=3)
        return callers

    def start(self, name: str, items: list[pytest.Item]) -> None:
        limit = GRACE + 10 * sum(self.seconds[item.nodeid] for item in items)
        process = os.fork()
        if process:
            self.running[process] = name, time.monotonic() + limit
            return
        os.environ["MUTANT_UNDER_TEST"] = name
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os._exit(0 if all(passes(item) for item in items) else 1)

    def wait(self) -> None:
        while True:
            process, exit_status = os.waitpid(-1, os.WNOHANG)
            if process in self.running:
                name, _ = self.running.pop(process)
                self.statuses[name] = {0: "not noticed", 1: "killed"}.get(
                    os.waitstatus_to_exitcode(exit_status), "crashed"
                )
                return
            for late, (name, end) in list(self.running.items()):
                if time.monotonic() > end:
                    os.kill(late, signal.SIGKILL)
                    os.waitpid(late, 0)
                    del self.running[late]
                    self.statuses[name] = "timeout"
                    return
            time.sleep(0.002)


def passes(item: pytest.Item) -> bool:
    return all(report.outcome != "failed" for report in runtestprotocol(item, log=False, nextitem=None))


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # the package with the mutants, before the installed one
    names, results, minutes, *tests = sys.argv[1:]
    # what torch.compile makes of mutmut's wrappers takes half a minute, and says nothing more than the other tests
    options = ["--quiet", "--capture=no", "-k", "not compiled", "--override-ini=addopts=", "-p", "no:cacheprovider"]
    plugin = ForkPerMutant(json.loads(Path(names).read_text("utf-8")), Path(results), float(minutes))
    sys.exit(pytest.main([*options, *tests], plugins=[plugin]))
