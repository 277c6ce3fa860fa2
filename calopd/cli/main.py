"""The `calopd` command. Arguments are parsed before anything heavy is imported, so that --help is instant."""

import argparse
import os
import sys
from pathlib import Path

from calopd.cli import tsd as tsd_commands
from calopd.local.entry_point import guarded


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="calopd", description="On-policy distillation that learns what is worth learning."
    )
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train on this machine: starts, watches and stops all services")
    run.add_argument("config", type=Path, nargs="?", help="the run's TOML, e.g. configs/demo.toml")
    run.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run in this directory")
    run.add_argument("--overwrite", action="store_true", help="start anew where a run of this name exists")
    run.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one setting")
    data = commands.add_parser("data", help="problems: clean them, solve them, draw negatives").add_subparsers(
        dest="data_command", required=True
    )
    prepare = data.add_parser("prepare", help="a parquet, JSONL or hub data set -> one clean JSONL")
    prepare.add_argument("source", help="file, or owner/name of a data set on the hub")
    prepare.add_argument("-o", "--out", type=Path, required=True)
    data.add_parser("solve", add_help=False, help="one solution a problem from a strong model; the right ones are kept")
    negatives = data.add_parser("negatives", help="the wrong answer and the unrelated solution of every problem")
    negatives.add_argument("source", type=Path)
    negatives.add_argument("-o", "--out", type=Path, required=True)
    negatives.add_argument("--tokenizer", required=True, help="model directory or hub id: lengths are its tokens")
    negatives.add_argument("--seed", type=int, default=0, help="the run's seed: the teacher sees the same negatives")
    tsd_commands.add_commands(commands)
    _add_eval(
        commands.add_parser("eval", help="accuracy of models on benchmarks, with intervals; `eval compare A B …`")
    )
    report = commands.add_parser("report", help="write a run's report.html again")
    report.add_argument("directory", type=Path)
    return top


def _add_eval(evaluate: argparse.ArgumentParser) -> None:
    """The defaults are the paper's evaluation."""
    add = evaluate.add_argument
    evaluate.usage = "calopd eval [LABEL=]MODEL ... --benchmark NAMES | calopd eval compare RESULTS RESULTS ..."
    add("models", nargs="+", metavar="[LABEL=]MODEL", help="model directory or hub id, run (RUN, RUN@STEP), checkpoint")
    add("--benchmark", required=True, help="amc23,aime24,aime25,aime26,hmmt26,math500 or files {id, problem, answer}")
    add("-n", type=int, default=16, help="samples a problem (16)")
    add("-o", "--out", type=Path, help="directory of samples, results and page (evaluations/LABELS)")
    add("--problems", type=int, metavar="K", help="only the first K problems of each benchmark")
    add(
        "--replicas",
        type=int,
        default=1,
        help="processes that share the work, each with GPUs or threads of its own (1)",
    )
    add("--overwrite", action="store_true", help="sample anew what is there already")
    add("--student", metavar="LABEL", help="whom the others are compared with (the first)")
    add("--teacher", metavar="LABEL", help="no method: it stands below the student (the one labelled `teacher`)")
    add("--seed", type=int, default=0)
    add("--temperature", type=float, default=0.6)
    add("--top-p", type=float, default=0.95)
    add("--max-tokens", type=int, default=20_480)
    add("--max-prompt-tokens", type=int, default=2_048)
    add("--no-thinking", dest="thinking", action="store_false", help="chat template with enable_thinking=False")
    add("--engine", choices=("vllm", "torch"), default="vllm")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--in-flight", type=int, default=256, help="responses a replica writes at once (256)")
    add("--tensor-parallel-size", type=int, default=1)
    add("--cpu-kv-cache-gib", type=int, default=1)


def _compare_parser() -> argparse.ArgumentParser:
    compare = argparse.ArgumentParser(prog="calopd eval compare", description="Paired comparison of evaluations.")
    compare.add_argument(
        "results", type=Path, nargs="+", help="results.json, or its directory; the first is the student"
    )
    compare.add_argument("--student", metavar="LABEL", help="whom the others are compared with (the first)")
    compare.add_argument("--teacher", metavar="LABEL", help="no method (the one labelled `teacher`)")
    compare.add_argument("--format", choices=("text", "markdown", "csv", "latex"), default="text")
    compare.add_argument("-o", "--out", type=Path, help="file of the export; with text, of a page")
    return compare


def main() -> None:
    if sys.argv[1:3] == ["data", "solve"]:
        # A service's engine does it, and the library knows no service: its own module takes over.
        os.execv(sys.executable, [sys.executable, "-m", "services.rollout.jobs.solve", *sys.argv[3:]])
    if sys.argv[1:3] == ["eval", "compare"]:
        compared = _compare_parser().parse_args(sys.argv[3:])
        guarded(lambda: _evaluation("compare_results", compared))
        return
    arguments = parser().parse_args()
    if arguments.command == "eval":
        guarded(lambda: _evaluation("evaluate", arguments))
        return
    if arguments.command == "data":
        from calopd.cli import data as data_commands

        guarded(lambda: getattr(data_commands, arguments.data_command)(arguments))
        return
    actions = {"run": _run, "report": _report, "tsd": tsd_commands.run}
    guarded(lambda: actions[arguments.command](arguments))


def _run(arguments: argparse.Namespace) -> None:
    from calopd.config import check_resumable, load_config
    from calopd.core.errors import ConfigError
    from calopd.local.services import Stopped
    from calopd.local.training import run
    from calopd.rundir.layout import RunDir

    if (arguments.config is None) == (arguments.resume is None):
        raise ConfigError("give either a configuration or --resume DIR")
    file = RunDir(arguments.resume).config if arguments.resume else arguments.config
    config = load_config(file, arguments.set)
    if arguments.resume:
        check_resumable(load_config(file, environ={}), config)
        if config.run_dir.path.resolve() != arguments.resume.resolve():
            raise ConfigError(f"{file} is of the run {config.run_dir}: resume it from the directory where it began")
    try:
        run(config, resume=arguments.resume is not None, overwrite=arguments.overwrite)
    except Stopped:
        print(f"stopped; go on with: calopd run --resume {config.run_dir}", file=sys.stderr)
        sys.exit(130)


def _evaluation(name: str, arguments: argparse.Namespace) -> None:
    from calopd.cli import eval as command

    getattr(command, name)(arguments)


def _report(arguments: argparse.Namespace) -> None:
    from calopd.pages.report import write_report
    from calopd.rundir.layout import RunDir

    print(write_report(RunDir(arguments.directory)))


if __name__ == "__main__":
    main()
