"""Look for known vulnerabilities in everything that requirements.txt installs, with pip-audit.

pip-audit gets an environment of its own, build/audit. Exit code 0: every package is known there and no vulnerability
of it; 1: some have one; 2: the data could not be reached, or does not know every package.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "audit"
PIP_AUDIT = "pip-audit==2.10.1"


def installed() -> list[str]:
    """What is installed here, requirements of requirements too, without the name of a build such as +cpu."""
    pip = [sys.executable, "-m", "pip", "list", "--format=json", "--disable-pip-version-check"]
    listed = json.loads(subprocess.run(pip, capture_output=True, text=True, check=True).stdout)
    here = [package for package in listed if "editable_project_location" not in package]
    return [f"{package['name']}=={package['version'].partition('+')[0]}" for package in here]


def auditor() -> Path:
    python = FOLDER / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER / "venv")], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, PIP_AUDIT], check=True)
    return python


def audit(python: Path, packages: list[str], service: str) -> tuple[list[dict], str]:
    """What the service knows of the packages; an empty list and the error where it cannot be asked."""
    pins, report = FOLDER / "pins.txt", FOLDER / "report.json"
    pins.write_text("\n".join(packages) + "\n", encoding="utf-8")
    report.unlink(missing_ok=True)
    options = ["--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", f"--output={report}"]
    command = [str(python), "-m", "pip_audit", f"--requirement={pins}", f"--vulnerability-service={service}"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    answers = json.loads(report.read_text(encoding="utf-8"))["dependencies"] if report.is_file() else []
    if all("skip_reason" in answer for answer in answers):  # a mirror without the data answers so for every package
        reasons = [answer["skip_reason"] for answer in answers] + done.stderr.strip().splitlines()[-1:]
        return [], next(iter(reasons), "no answer")
    return answers, ""


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    packages = installed()
    try:
        python = auditor()
    except subprocess.CalledProcessError as error:
        print(f"not audited: {PIP_AUDIT} could not be installed: {error}", file=sys.stderr)
        return 2
    for service in ("pypi", "osv"):
        answers, problem = audit(python, packages, service)
        if answers:
            return report(answers, service)
        print(f"not audited: {service} gives no answer here: {problem}", file=sys.stderr)
    return 2


def report(answers: list[dict], service: str) -> int:
    unknown = [answer["name"] for answer in answers if "skip_reason" in answer]
    found = [(answer, vulnerability) for answer in answers for vulnerability in answer.get("vulns", [])]
    for answer, vulnerability in found:
        mended = ", ".join(vulnerability["fix_versions"]) or "nothing yet"
        print(f"{answer['name']} {answer['version']}: {vulnerability['id']}, mended in {mended}")
    print(f"{len(answers) - len(unknown)} packages, asked at {service}: {len(found)} known vulnerabilities")
    if unknown:
        print(f"not audited, since not known there: {', '.join(unknown)}", file=sys.stderr)
    return 1 if found else 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
