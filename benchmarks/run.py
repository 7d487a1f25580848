"""Time and peak memory of the package's attention against what a user would pick in its place: make bench.

Candidates take turns within a case, so that a machine that slows down slows all of them down; a ratio is the median
over the turns of (ours / other) in the same turn. Results go to build/benchmarks/ as text and pictures. With --store
the text goes to data/benchmarks/, from where lesson 07 reads it: run `make run` afterwards.
"""

import argparse
import csv
import datetime
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import memory
import torch
from alternatives import MatrixProducts, PackedProjection, SeparateProjections, Textbook, TorchLayer, same_weights
from torch import Tensor, nn
from torch.utils.benchmark import Timer
from tqdm import tqdm

from attention_core import FusedMultiHeadAttention, MultiHeadAttention
from attention_core.plots import curves

ROOT = Path(__file__).parent.parent
WIDTH, NUM_HEADS, BATCH = memory.WIDTH, memory.NUM_HEADS, memory.BATCH
LONGEST_WITH_WEIGHTS = 2048  # candidates that hold the (T, T) weights run up to here
LONGEST_WITH_DROPOUT = 1024  # with dropout PyTorch's kernel on the CPU holds them too
MEGABYTE = 2**20
OURS = ("FusedMultiHeadAttention", "MultiHeadAttention", "tiled_attention")

Row = dict[str, object]
Job = Callable[[], object]


def layers(length: int, dropout: float, device: str, dtype: torch.dtype) -> dict[str, nn.Module]:
    sizes = (WIDTH, WIDTH, length, dropout, NUM_HEADS)
    ours, fused = MultiHeadAttention(*sizes), FusedMultiHeadAttention(*sizes)
    fused.load_state_dict(ours.state_dict())
    made: dict[str, nn.Module] = {
        "FusedMultiHeadAttention": fused,
        "sdpa, separate projections": SeparateProjections(WIDTH, dropout, NUM_HEADS),
        "sdpa, packed projection": PackedProjection(WIDTH, dropout, NUM_HEADS),
        "nn.MultiheadAttention": TorchLayer(WIDTH, length, dropout, NUM_HEADS, need_weights=False),
        "matrix products alone": MatrixProducts(WIDTH, NUM_HEADS),
    }
    if length <= LONGEST_WITH_WEIGHTS:
        made["nn.MultiheadAttention, weights"] = TorchLayer(WIDTH, length, dropout, NUM_HEADS, need_weights=True)
        made["textbook layer"] = Textbook(WIDTH, length, dropout, NUM_HEADS)
    for name, layer in made.items():
        if name != "FusedMultiHeadAttention":
            same_weights(layer, ours)
    made["MultiHeadAttention"] = ours
    if length > LONGEST_WITH_WEIGHTS:
        del made["MultiHeadAttention"]
    return {name: layer.to(device, dtype) for name, layer in made.items()}


def layer_job(layer: nn.Module, x: Tensor, mode: str) -> Job:
    def forward() -> None:
        with torch.no_grad():
            layer(x)

    def forward_and_backward() -> None:
        layer.zero_grad()
        layer(x).sum().backward()

    return forward if mode.startswith("forward,") else forward_and_backward


def function_job(name: str, inputs: list[Tensor], backward: bool) -> Job:
    return lambda: memory.run(memory.CANDIDATES[name], inputs, backward)


def take_turns(jobs: dict[str, Job], repeats: int, threads: int, title: str) -> dict[str, list[float]]:
    """Seconds of each job in each turn; the first turn, which warms up, is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    timers = {name: Timer("job()", globals={"job": job}, num_threads=threads) for name, job in jobs.items()}
    for turn in tqdm(range(repeats + 1), desc=title, leave=False):
        first = turn % len(timers)  # another one each time, since what ran before leaves its traces in the caches
        for name in [*timers][first:] + [*timers][:first]:
            taken = timers[name].timeit(1).median
            if turn:
                seconds[name].append(taken)
    return seconds


def rows_of(case: str, mode: str, length: int, seconds: dict[str, list[float]]) -> list[Row]:
    rows: list[Row] = []
    for name, taken in seconds.items():
        row: Row = {"case": case, "mode": mode, "length": length, "candidate": name}
        row["milliseconds"] = round(1000 * statistics.median(taken), 3)
        for ours in OURS:
            row[f"{ours} / it"] = round(ratio(seconds[ours], taken), 3) if ours in seconds else ""
        rows.append(row)
    return rows


def ratio(ours: list[float], other: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, other, strict=True))


def time_layers(options: argparse.Namespace, dtype: torch.dtype) -> list[Row]:
    rows: list[Row] = []
    for length in options.lengths:
        x = torch.randn(BATCH, length, WIDTH, device=options.device, dtype=dtype)
        for state, dropout in (("eval", 0.0), ("train", 0.0), ("train", 0.1)):
            if dropout and length > LONGEST_WITH_DROPOUT:
                continue
            made = layers(length, dropout, options.device, dtype)
            for layer in made.values():
                layer.train(state == "train")
            for work in ("forward", "forward and backward"):
                mode = f"{work}, {state}, dropout {dropout}"
                jobs = {name: layer_job(layer, x, mode) for name, layer in made.items()}
                seconds = take_turns(jobs, options.repeats, options.threads, f"layer, {length} tokens, {mode}")
                rows += rows_of("layer", mode, length, seconds)
    return rows


def time_functions(options: argparse.Namespace, dtype: torch.dtype) -> list[Row]:
    rows: list[Row] = []
    for work in ("forward", "forward and backward"):
        backward = work != "forward"
        inputs = memory.make_inputs(NUM_HEADS, options.function_length, options.device, dtype, backward)
        jobs = {name: function_job(name, inputs, backward) for name in memory.CANDIDATES}
        seconds = take_turns(jobs, options.repeats, options.threads, f"attention, {options.function_length}, {work}")
        rows += rows_of("attention", work, options.function_length, seconds)
    return rows


def measure_memory(options: argparse.Namespace, dtype: torch.dtype) -> list[Row]:
    rows: list[Row] = []
    passes = ("forward",) if options.quick else ("forward", "backward")
    lengths = {"attention": options.memory_lengths, "layer": options.lengths[:3]}
    names = {"attention": memory.CANDIDATES, "layer": memory.LAYERS}
    cases = [
        (case, which_pass, length, name)
        for case in ("attention", "layer")
        for which_pass in passes
        for length in lengths[case]
        for name in names[case]
        if name != "textbook" or length <= options.longest_textbook
    ]
    for case, which_pass, length, name in tqdm(cases, desc="peak memory", leave=False):
        arguments = [case, name, str(length), options.device, str(dtype).removeprefix("torch."), which_pass]
        command = [sys.executable, str(ROOT / "benchmarks" / "memory.py"), *arguments]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        megabytes = max(round(int(printed) / MEGABYTE, 1), 0.1)  # a logarithmic axis has no place for 0
        row = {"case": case, "pass": which_pass, "length": length, "candidate": name, "megabytes": megabytes}
        rows.append(row)
    return rows


def table(rows: list[Row]) -> str:
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([str(row[name]) for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_csv(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine(options: argparse.Namespace) -> str:
    name = torch.cuda.get_device_name() if options.device == "cuda" else processor()
    facts = {
        "date": datetime.date.today().isoformat(),
        "machine": name,
        "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "threads": str(options.threads),
        "repeats": str(options.repeats),
        "dtype": options.dtype,
    }
    return "".join(f'{key} = "{value}"\n' for key, value in facts.items())


def draw(folder: Path, name: str, rows: list[Row], number: str, title: str, y_label: str) -> None:
    """One curve for each candidate that was measured at every length, and its description beside it as text."""
    lengths = sorted({row["length"] for row in rows})  # type: ignore[type-var]
    found = {(row["candidate"], row["length"]): float(str(row[number])) for row in rows}
    lines = {
        str(candidate): [found[candidate, length] for length in lengths]
        for candidate in dict.fromkeys(row["candidate"] for row in rows)
        if all((candidate, length) in found for length in lengths)
    }
    picture = curves(lengths, lines, title, x_label="tokens", y_label=y_label, log="xy")  # type: ignore[arg-type]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.png").write_bytes(picture.png())
    (folder / f"{name}.txt").write_text(f"{picture.description}\n", "utf-8")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one turn: shows that everything runs")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7, help="turns that are counted")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "benchmarks", help="folder for results and pictures"
    )
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096], help="tokens of a layer"
    )
    parser.add_argument("--only", choices=("time", "memory"), help="default: both")
    parser.add_argument("--store", action="store_true", help="put the results into data/benchmarks/, for lesson 07")
    options = parser.parse_args(arguments)
    options.data = ROOT / "data" / "benchmarks" if options.store else options.out
    options.lengths = [16] if options.quick else options.lengths
    options.function_length = 64 if options.quick else 4096
    options.memory_lengths = [64] if options.quick else [2**power for power in range(10, 16)]
    options.longest_textbook = 8192
    options.repeats, options.threads = (1, 1) if options.quick else (options.repeats, options.threads)
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    dtype = getattr(torch, options.dtype)
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    suffix = "" if (options.device, options.dtype) == ("cpu", "float32") else f"_{options.device}_{options.dtype}"
    options.data.mkdir(parents=True, exist_ok=True)
    (options.data / f"machine{suffix}.toml").write_text(machine(options), "utf-8")
    print(machine(options))
    if options.only != "memory":
        seconds = time_functions(options, dtype) + time_layers(options, dtype)
        write_csv(options.data / f"time{suffix}.csv", seconds)
        shown = [row for row in seconds if (row["case"], row["mode"]) == ("layer", "forward, eval, dropout 0.0")]
        draw(options.out, f"time{suffix}", shown, "milliseconds", "Time of a layer, forward", "milliseconds")
        print(table(seconds), end="\n\n")
    if options.only != "time":
        megabytes = measure_memory(options, dtype)
        write_csv(options.data / f"memory{suffix}.csv", megabytes)
        shown = [row for row in megabytes if (row["case"], row["pass"]) == ("attention", "forward")]
        draw(options.out, f"memory{suffix}", shown, "megabytes", "Peak memory, one head", "MB beyond in- and output")
        print(table(megabytes))


if __name__ == "__main__":
    main()
