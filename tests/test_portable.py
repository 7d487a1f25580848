"""The tool that compares every digit under other instruction sets and versions tells what it found."""

import os
from pathlib import Path

import portable
import pytest

REPORT = """<testsuites><testsuite>
<testcase classname="notebooks.01" name="Cell 0" />
<testcase classname="notebooks.01" name="Cell 1"><failure>
E   mismatch 'stdout'
E   +tensor([1.8524])
  + tensor([1.8524])
  - tensor([1.8525])
</failure></testcase>
<testcase classname="notebooks.01" name="Cell 2"><skipped /></testcase>
</testsuite></testsuites>"""


def test_failed_skipped_and_missing_cells_count(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    row = portable.read_report(report, expected=5, seconds=1.0)
    assert (row.passed, row.failed, row.missing, row.same) == (1, 2, 2, False)
    assert "    + tensor([1.8524])" in row.moved
    assert "    - tensor([1.8525])" in row.moved


@pytest.mark.parametrize(
    ("passed", "failed", "missing", "same"), [(3, 0, 0, True), (3, 1, 0, False), (3, 0, 1, False), (0, 0, 0, False)]
)
def test_only_all_cells_are_the_same(passed: int, failed: int, missing: int, same: bool) -> None:
    assert portable.Row(passed, failed, missing, 1.0, []).same is same


def test_a_run_without_report_misses_every_cell(tmp_path: Path) -> None:
    assert portable.read_report(tmp_path / "none.xml", expected=5, seconds=1.0).missing == 5


def test_native_is_left_alone_and_the_others_are_steered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert "ATEN_CPU_CAPABILITY" not in portable.environment("native", "one")
    assert portable.environment("default", "one")["ATEN_CPU_CAPABILITY"] == "default"
    assert portable.environment("native", "one")["OMP_NUM_THREADS"] == "1"
    assert portable.environment("native", "all")["MKL_NUM_THREADS"] == str(os.cpu_count())


def test_only_the_line_of_torch_changes() -> None:
    assert portable.with_torch("a==1\ntorch==2.13.0\ntorchless==3\n", "2.6.0") == "a==1\ntorch==2.6.0\ntorchless==3\n"
    with pytest.raises(ValueError, match="must pin torch in one line, found 0"):
        portable.with_torch("numpy==1\n", "2.6.0")
    assert portable.with_torch((portable.ROOT / "requirements.txt").read_text("utf-8"), "2.6.0")
