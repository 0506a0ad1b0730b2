"""Compares ours and peers on the same work, in turn (A, B, C, A, B, C, ...), each in a new process, in a table.

A peer runs in the environment named after it (benchmarks/README.md). Without one it is skipped:

  python -m benchmarks.compare --task training --config base --venv torch=/venvs/torch --venv opennmt=/venvs/opennmt

The table has the best mode and number of threads of each engine.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from benchmarks import common, draw
from benchmarks.translation import exported

ROOT = Path(__file__).parents[1]
# Environment, program under benchmarks/ and modes of each engine. Those without an environment run in this one.
ENGINES = {
    common.OURS: ("", "", [""]),
    "huggingface": ("torch", "peers.huggingface", ["eager", "compiled"]),
    "torch_nn": ("torch", "peers.torch_nn", ["eager", "compiled"]),
    "opennmt_tf": ("opennmt", "peers.opennmt_tf", ["default"]),
    "kerashub": ("kerashub", "peers.kerashub", ["default", "xla"]),
    "tf_models": ("tfmodels", "peers.tf_models", ["default"]),
    "ctranslate2_cpp": ("", "peers.ctranslate2_cpp", ["default"]),
    "litert": ("", "peers.litert", ["default"]),
}
TASKS = {  # engines by task and dtype
    ("training", "float32"): ["huggingface", "torch_nn", "opennmt_tf", "kerashub", "tf_models"],
    ("training", "bfloat16"): ["huggingface", "torch_nn", "kerashub", "tf_models"],
    ("translation", "float32"): ["ctranslate2_cpp", "litert", "huggingface", "opennmt_tf", "kerashub", "tf_models"],
    ("translation", "bfloat16"): ["ctranslate2_cpp", "huggingface", "kerashub", "tf_models"],
    ("translation", "int8"): ["ctranslate2_cpp", "litert"],
}
# In place of 16 bits, int8 is also its fastest.
CTRANSLATE2_DTYPE = {
    "float32": "float32",
    "bfloat16": "int8",
    "int8": "int8",
}


def main(argv=None) -> list[dict]:
    parser = common.parser("compare", __doc__, common.SERVED_DTYPES)
    add = parser.add_argument
    add("--task", default="training", choices=["training", "translation"], help="(training)")
    add("--sentences", type=int, default=32, help="sentences per request (32)")
    add("--engines", nargs="+", choices=ENGINES, metavar="NAME", help=f"of {', '.join(ENGINES)} (all)")
    add("--venv", action="append", default=[], metavar="NAME=DIR", help="torch, opennmt, kerashub, tfmodels")
    add("--loader", default="c", choices=["python", "c"], help="loader of ours (c)")
    add("--one-thread", action="store_true", help="also run each engine with one thread")
    add("--rounds", type=int, default=3, help="turns of each engine (3)")
    add("--repeats", type=int, default=8, help="timed steps or requests per turn (8)")
    add("--warmup", type=int, default=2, help="untimed steps or requests before (2)")
    add("--out", type=Path, metavar="FILE", help="append the JSON lines to this file")
    add("--picture", type=Path, metavar="FILE", help="draw the table as bars")
    common.add_work_folder(parser)
    args = parser.parse_args(argv)

    if (args.task, args.dtype) not in TASKS:
        parser.error(f"--dtype: expected one of 16 or 32 bits to train in, got {args.dtype}")
    turns = commands(args)
    if args.task == "translation":
        build(args)
    lines = []
    for number in range(args.rounds):
        for command in turns:
            line = run(command)
            if line is None:
                continue
            lines.append(line | {"round": number})
            if args.out:
                args.out.parent.mkdir(parents=True, exist_ok=True)
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    rows = common.summary(lines)
    print(table(rows))
    if args.picture:
        draw.bars(rows, args.picture)
    return rows


def commands(args) -> list[list[str]]:
    """Returns one command line for each engine, mode and number of threads."""
    venvs = dict(pair.split("=", 1) for pair in args.venv)
    able = [common.OURS, *TASKS[args.task, args.dtype]]
    lines = []
    for engine in able:
        venv, program, modes = ENGINES[engine]
        if args.engines and engine not in args.engines:
            continue
        if venv and venv not in venvs:
            print(f"{engine}: skipped, since --venv {venv}=DIR is missing", file=sys.stderr)
            continue
        python = str(Path(venvs[venv]) / "bin" / "python") if venv else sys.executable
        for mode in modes:
            if engine == "huggingface" and args.task == "translation" and mode == "compiled":
                continue  # its `generate` does not run the compiled model
            for threads in {args.threads, 1} if args.one_thread else {args.threads}:
                command = [python, "-m", f"benchmarks.{program or args.task}", "--config", args.config]
                command += ["--threads", str(threads), "--warmup", str(args.warmup)]
                dtype = CTRANSLATE2_DTYPE[args.dtype] if engine == "ctranslate2_cpp" else args.dtype
                command += ["--dtype", dtype]
                if engine != common.OURS:
                    command += ["--task", args.task, "--mode", mode]
                command += [
                    "--steps" if engine == common.OURS and args.task == "training" else "--repeats",
                    str(args.repeats),
                ]
                if args.task == "translation":
                    command += ["--sentences", str(args.sentences)]
                    command += ["--loader", args.loader] if engine == common.OURS else []
                if engine != common.OURS or args.task == "translation":
                    command += ["--work", str(args.work)]
                lines.append(command)
    return lines


def build(args) -> None:
    """Exports the models before any engine is timed."""
    work, dtypes = common.WORKS[args.config], {"savedmodel": args.dtype}
    if work.marian:
        dtypes = {"marian": "float32"} | dtypes
    if importlib.util.find_spec("ctranslate2"):
        dtypes["ctranslate2"] = "float32"
    if importlib.util.find_spec("ai_edge_litert") and args.dtype != "bfloat16":
        dtypes["litert"] = args.dtype
    for kind, dtype in dtypes.items():
        exported(work, dtype, args.work, kind=kind)


def run(command) -> dict | None:
    """Returns the line that a benchmark prints, or `None` if it failed, after printing its error."""
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if process.returncode:
        print(f"{' '.join(command)}\nfailed:\n{process.stderr[-2000:]}", file=sys.stderr)
        return None
    line = json.loads(process.stdout.splitlines()[-1])
    print(f"  {line['engine']} {line.get('mode', '')} {line['threads']} threads: {line['tokens_per_second']} tokens/s")
    return line


def table(rows) -> str:
    """Returns the table in Markdown."""
    lines = [
        "| engine | dtype | threads | tokens/s (lowest to highest) | ours to it | loading, s | peak MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        mode = "" if row.get("mode") in (None, "default") else f", {row['mode']}"
        rates = f"{row['tokens_per_second']:,.0f} ({row['lowest']:,.0f} to {row['highest']:,.0f})"
        lines.append(
            f"| {row['engine']}{mode} ({versions}) | {row['dtype']} | {row['threads']} | {rates} "
            f"| {row['ratio'] or '-'} | {row.get('load_seconds', '-')} | {row['peak_mib']:,.0f} |"
        )
    busy = max((row["others_cores"] for row in rows), default=0)
    if busy > 0.1:
        lines.append(f"\nNot a quiet machine: other processes kept up to {busy:.1f} cores busy.")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
