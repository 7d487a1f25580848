"""Notebooks, package and data make no network calls, start no programs, and loading data executes nothing."""

import ast
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
import torch
from in_process import ExecutedCell, Refused, execute, offline
from run_notebooks import NOTEBOOKS, ROOT, find_notebooks

from attention_core import data, load_published, load_sentence

pytestmark = pytest.mark.slow

MODULES = sorted(path for path in (ROOT / "attention_core").rglob("*.py"))
EXECUTED = [path for path in find_notebooks() if path.parent != NOTEBOOKS / "exercises"]
FORBIDDEN_MODULES = {
    *("socket", "ssl", "urllib", "http", "ftplib", "smtplib", "requests", "httpx", "aiohttp", "webbrowser", "xmlrpc"),
    *("pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "subprocess"),
}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_CALLS = {
    *("torch.load", "torch.hub.load", "numpy.load", "np.load", "pandas.read_pickle", "torch.jit.load"),
    *("os.system", "os.popen", "importlib.import_module"),
}
EXECUTES = {"compile", "exec", "marshal.loads", "pickle.find_class", "import", "code.__new__"}


def forbidden(tree: ast.AST) -> set[str]:
    """The names of what reaches for the network, unpickles or executes text."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.partition(".")[0] in FORBIDDEN_MODULES}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in FORBIDDEN_MODULES:
            found.add(str(node.module))
        elif isinstance(node, ast.Name) and node.id in FORBIDDEN_NAMES:
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            found |= {call for call in FORBIDDEN_CALLS if name == call}
            found |= {"allow_pickle"} if node.attr == "allow_pickle" else set()
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.add("allow_pickle")
    return found


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_the_package_neither_reaches_out_nor_executes_text(path: Path) -> None:
    assert forbidden(ast.parse(path.read_text(encoding="utf-8"))) == set()


@pytest.mark.parametrize("path", find_notebooks(), ids=name_of)
def test_the_notebooks_neither_reach_out_nor_execute_text(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    for cell in cells:
        assert forbidden(ast.parse(cell.source)) == set(), cell.id
        assert not any(line.lstrip().startswith(("!", "%")) for line in cell.source.splitlines()), cell.id


@pytest.mark.parametrize(
    "source",
    [
        "import urllib.request",
        "from http import client",
        "import pickle as p",
        "eval('1')",
        "torch.load('x')",
        "np.load('x', allow_pickle=True)",
        "data(allow_pickle=True)",
        "run = exec",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert forbidden(ast.parse(source))


def test_the_search_leaves_modules_in_evaluation_alone() -> None:
    assert not forbidden(ast.parse("layer.eval()\nmodel.compile()\nre.compile('x')"))


@pytest.mark.parametrize("path", EXECUTED, ids=name_of)
def test_a_notebook_runs_without_network(path: Path, executed: Callable[[Path], list[ExecutedCell]]) -> None:
    assert executed(path)  # raises Refused where a cell connects


def test_imports_make_no_connection_and_start_no_program() -> None:
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES if path.stem[:2] != "__"]
    code = """
        import sys
        def hook(event, arguments):
            if event.startswith(("socket.connect", "socket.getaddrinfo", "socket.bind", "subprocess", "os.system")):
                if "attention_core" in str(sys._getframe(1).f_globals.get("__name__")) or not event.startswith("subp"):
                    raise SystemExit(f"{event} {arguments}")
        sys.addaudithook(hook)
        import importlib
        for name in sys.argv[1:]:
            importlib.import_module(name)
        print("imported")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), "attention_core", *names],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.stdout == "imported\n", done.stdout + done.stderr


def write_notebook(folder: Path, source: str) -> Path:
    path = folder / "sample.ipynb"
    cell = nbformat.v4.new_code_cell(source, id="sample", execution_count=1)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    return path


@pytest.mark.parametrize(
    "source",
    [
        "import socket\nsocket.create_connection(('127.0.0.1', 9))",
        "import socket\nsocket.getaddrinfo('localhost', 80)",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
        "import socket\nsocket.socket().bind(('127.0.0.1', 0))",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9/')",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.system('true')",
        "!true",
        "try:\n    import socket\n    socket.create_connection(('127.0.0.1', 9))\nexcept Exception:\n    pass",
    ],
)
def test_a_notebook_that_reaches_out_is_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises((Refused, RuntimeError), match=r"socket\.|subprocess|os\.|Refused"):
        execute(write_notebook(tmp_path, source))


def test_after_a_notebook_connections_are_allowed_again() -> None:
    with offline(), pytest.raises(Refused):
        socket.getaddrinfo("127.0.0.1", 80)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass


# --- loading data ------------------------------------------------------------------------------------------------

_events: list[tuple[str, str]] = []
_listening = False


def _listen(event: str, arguments: tuple) -> None:
    if _listening and (event in EXECUTES or event == "open"):
        _events.append((event, str(arguments[0]) if arguments else ""))


@pytest.fixture(scope="module")
def events() -> list[tuple[str, str]]:
    sys.addaudithook(_listen)
    return _events


def test_loading_opens_its_file_and_executes_nothing(events: list[tuple[str, str]]) -> None:
    global _listening
    sentences = sorted(path.stem for path in (data.FOLDER / "sentences").glob("*.csv"))
    load_sentence(sentences[0])
    load_published("000.queries")  # what the first call imports is imported now
    events.clear()
    _listening = True
    try:
        for name in sentences:
            load_sentence(name)
        load_published("000.queries")
    finally:
        _listening = False
    expected = [data.FOLDER / "sentences" / f"{name}.csv" for name in sentences]
    assert events == [("open", str(path)) for path in [*expected, data.FOLDER / "published" / "000.toml"]]


HOSTILE = [
    "__import__('os').mkdir('taken')",
    "=cmd|'/c calc'!A1",
    "cos\nsystem\n(S'mkdir taken'\ntR.",
    "1;import os",
    "nan",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_in_place_of_a_number_is_an_error(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sentences").mkdir()
    (tmp_path / "sentences" / "hostile.csv").write_text(f'token,feature_1\nword,"{text}"\n', encoding="utf-8")
    monkeypatch.setattr(data, "FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"hostile\.csv, line 2"):
        load_sentence("hostile")
    assert not (tmp_path / "taken").exists()


def test_a_pickle_with_the_name_of_a_sentence_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sentences").mkdir()
    torch.save({"token": torch.ones(2)}, tmp_path / "sentences" / "hostile.csv")
    monkeypatch.setattr(data, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"hostile\.csv, line"):
        load_sentence("hostile")


@pytest.mark.parametrize("name", ["../sentences/journey", "/etc/passwd", "journey.csv", "..", "", "~/x", "http://x/y"])
def test_a_name_is_never_a_path_or_an_address(name: str) -> None:
    with pytest.raises(ValueError, match="unknown sentence"):
        load_sentence(name)
    with pytest.raises(ValueError, match="unknown published document"):
        load_published(f"{name}.queries" if "." not in name else name)
