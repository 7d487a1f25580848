"""Run one submitted notebook, read from standard input, and write what its checks came to, as JSON, to standard output.

tools/grade.py starts it, one process a notebook. What the notebook prints goes nowhere.
"""

import json
import os
import sys

import nbformat
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from attention_core.exercises import recorded


def main() -> None:
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silence = os.open(os.devnull, os.O_RDWR)
    notebook = nbformat.reads(sys.stdin.read(), as_version=4)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            shell.run_cell(cell.source)
    json.dump({name: [result.status, result.mistake] for name, result in recorded().items()}, results)
    results.flush()
    os._exit(0)  # threads that the notebook left behind do not keep the process


if __name__ == "__main__":
    main()
