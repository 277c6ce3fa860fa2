"""Commands are found by their files, --help is instant, and the command lines of the documentation are understood."""

import subprocess
import sys

import pytest

import calopd
from calopd.cli.registry import Command, find_command
from tests.services.processes import ROOT


def all_commands(command: Command) -> list[Command]:
    return [command, *(found for child in command.children for found in all_commands(child))]


@pytest.mark.parametrize(
    ("line", "words", "rest"),
    [
        ("run configs/demo.toml --overwrite", "run", ["configs/demo.toml", "--overwrite"]),
        ("eval MODEL --benchmark math500", "eval", ["MODEL", "--benchmark", "math500"]),
        ("eval compare A B", "eval compare", ["A", "B"]),
        ("data solve in.jsonl -o out.jsonl --model m", "data solve", ["in.jsonl", "-o", "out.jsonl", "--model", "m"]),
        ("tsd collect demo.toml -o study", "tsd collect", ["demo.toml", "-o", "study"]),
        ("download run.toml --wait", "download", ["run.toml", "--wait"]),
        ("report runs/demo", "report", ["runs/demo"]),
        ("doctor run.toml --full --report out.md", "doctor", ["run.toml", "--full", "--report", "out.md"]),
    ],
)
def test_command_lines_are_understood(line, words, rest):
    command, left = find_command(line.split())
    assert (" ".join(command.words), left) == (words, rest)
    assert callable(command.module.run)
    command.parser().parse_args(left)


def test_every_command_has_a_help_line_and_a_parser():
    commands = all_commands(Command(()))
    names = {" ".join(command.words) for command in commands}
    assert {"", "run", "data", "data prepare", "tsd", "tsd advise", "eval", "eval compare", "download"} <= names
    for command in commands[1:]:
        assert command.module.HELP
        assert command.parser().format_help().startswith(f"usage: calopd {' '.join(command.words)}")


def test_a_new_file_is_a_new_command(tmp_path, monkeypatch):
    (tmp_path / "hello.py").write_text(
        'HELP = "greet"\ndef add_arguments(p): p.add_argument("name")\ndef run(a): print("hello", a.name)\n'
    )
    from calopd.cli import commands

    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    command, rest = find_command(["hello", "you"])
    assert command.words == ("hello",)
    assert "greet" in Command(()).parser().format_help()
    assert command.parser().parse_args(rest).name == "you"


@pytest.mark.parametrize("words", [[], ["data"], ["no-such-command"], ["data", "no-such-command"]])
def test_a_missing_or_unknown_command_is_a_usage_error(words, capsys):
    command, rest = find_command(words)
    with pytest.raises(SystemExit) as stopped:
        command.parser().parse_args(rest)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "--help`" in line


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["eval", "--help"], ["tsd", "collect", "--help"], ["doctor", "--help"]]
)
def test_help_imports_nothing_heavy(words):
    code = (
        "import sys; from calopd.cli.main import main; sys.argv = ['calopd', *sys.argv[1:]]\n"
        "try: main()\n"
        "finally: assert not {'torch', 'grpc', 'numpy', 'pydantic', 'transformers', 'redis'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: calopd" in done.stdout


def test_the_version_is_that_of_the_package():
    done = subprocess.run([sys.executable, "-m", "calopd.cli", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == f"calopd {calopd.__version__}\n"
