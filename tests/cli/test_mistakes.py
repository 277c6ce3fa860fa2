"""Mistakes of a first hour. Each ends with one line that says what to do, and leaves every file as it was.

All of them are known before a model is loaded.
"""

import os
import runpy
import socket
import sys
from collections.abc import Iterator

import pytest

from calopd.cli.main import main
from calopd.local import embedded_redis
from calopd.local.replicated_job import attempts_file
from calopd.rundir.locks import exclusive
from tests.cli.workspace import contents
from tests.conftest import Server
from tests.ports import free_port

USAGE, CONFIG, TEMPORARY = 2, 78, 75
EVAL = "eval student --benchmark heldout.jsonl --max-tokens 96 --max-prompt-tokens 256"
SOLVE = "data solve train.jsonl --model teacher --max-tokens 96 --max-prompt-tokens 256"
EVAL_RUN = EVAL.replace("student", "existing=student") + " -o runs"
STUDY = "tsd collect run.toml -o new-study --rollouts 4"

MISTAKES: list[tuple[str, int, str]] = [
    # The command line
    ("", USAGE, "required: COMMAND"),
    ("trian run.toml", USAGE, "'trian' (choose from"),
    ("run run.toml --ressume x", USAGE, "unrecognized arguments: --ressume"),
    ("run", CONFIG, "give either a configuration or --resume DIR"),
    ("run run.toml --resume runs/existing", CONFIG, "give either a configuration or --resume DIR"),
    ("run --resume runs/existing --overwrite", CONFIG, "give one of them"),
    ("run --resume nowhere", CONFIG, "no run there; expected a directory like runs/demo"),
    ("run --resume runs/thesis", CONFIG, "no run there; expected a directory like runs/demo"),
    ("retry nowhere", CONFIG, "nowhere: no run there; expected a directory like runs/demo"),
    ("retry runs/existing", CONFIG, "the run has a Redis server of its own"),
    ("gc run.toml", CONFIG, "queue.url is empty: a server that `calopd run` starts holds its own run only"),
    ("gc run.toml --idle-days 0", USAGE, "--idle-days: 0: expected a number above 0"),
    ("eval student", USAGE, "required: --benchmark"),
    ("doctor run.toml --quick --full", CONFIG, "give --quick or --full, not both"),
    ("doctor run.toml --problems 0", USAGE, "--problems: 0: expected 1 or more"),
    # The configuration
    ("run nowhere.toml", CONFIG, "cannot read the configuration nowhere.toml: No such file"),
    ("run runs", CONFIG, "cannot read the configuration runs: Is a directory"),
    ("run latin1.toml", CONFIG, "not UTF-8 text: save it with the encoding UTF-8"),
    ("run no-toml.toml", CONFIG, "no-toml.toml is not valid TOML"),
    ("run itself.toml", CONFIG, "a configuration cannot extend itself"),
    ("run lost-base.toml", CONFIG, "cannot read the configuration no-such.toml"),
    ("run no-teacher.toml", CONFIG, "teacher is missing"),
    ("run run.toml --set steps=3", CONFIG, "unknown key steps: did you mean run.steps?"),
    ("run run.toml --set run.step=3", CONFIG, "unknown key run.step: did you mean steps?"),
    ("run run.toml --set runs.steps=3", CONFIG, "unknown key runs: did you mean run?"),
    ("run run.toml --set run.steps", CONFIG, "expected section.key=value"),
    ("run run.toml --set =3", CONFIG, "expected section.key=value"),
    ("run run.toml --set run=3", CONFIG, "run is a section"),
    ("run run.toml --set run.steps=0", CONFIG, "run.steps: expected 1 or more (given: 0)"),
    ("run run.toml --set run.steps=many", CONFIG, "run.steps: expected a whole number (given: 'many')"),
    ("run run.toml --set run.steps=2.5", CONFIG, "run.steps: expected a whole number (given: 2.5)"),
    ("run run.toml --set run.deterministic=maybe", CONFIG, "expected true or false"),
    ("run run.toml --set run.seed=-1", CONFIG, "run.seed: expected 0 or more (given: -1)"),
    ("run run.toml --set run.seed=4294967296", CONFIG, "run.seed: expected a number below 4294967296"),
    ("run run.toml --set run.name=..", CONFIG, "run.name is '..': expected letters"),
    ("run run.toml --set run.name=.", CONFIG, "run.name is '.': expected letters"),
    ("run run.toml --set run.name=a/b", CONFIG, "run.name is 'a/b': expected letters"),
    ("run run.toml --set learner.learning_rate=inf", CONFIG, "learner.learning_rate: expected a finite number"),
    ("run run.toml --set learner.learning_rate=-1", CONFIG, "learner.learning_rate: expected"),
    ("run run.toml --set rollout.temperature=0", CONFIG, "rollout.temperature: expected a number above 0"),
    ("run run.toml --set rollout.top_p=1.5", CONFIG, "rollout.top_p: expected 1 or less"),
    ("run run.toml --set rollout.engine=sglang", CONFIG, "rollout.engine: expected 'vllm', 'torch' or 'emulated'"),
    ("run run.toml --set rollout.port=70000", CONFIG, "rollout.port: expected 65535 or less"),
    ("run run.toml --set rollout.port=7000 --set learner.port=7000", CONFIG, "are both 7000: choose a different"),
    ("run run.toml --set method.name=cal-opd", CONFIG, "unknown method 'cal-opd': did you mean cal_opd?"),
    ("run run.toml --set method.relaxation=0.5", CONFIG, "expected a number greater than or equal to 1"),
    ("run run.toml --set method.relaxation=big", CONFIG, "method.relaxation: expected a number (given: 'big')"),
    ("run run.toml --set method.probes=[]", CONFIG, "probes is (), expected at least one context group"),
    ("run run.toml --set method.probes=['evil']", CONFIG, "evil"),
    ("run run.toml --set method.file=method.py", CONFIG, "expected a METHOD = Method(...) in it"),
    ("run run.toml --set method.file=nowhere.py", CONFIG, "no Python file there"),
    ("run run.toml --set method.file=broken_method.py", CONFIG, "method.file = 'broken_method.py': SyntaxError"),
    ("run run.toml --set method.file=failing_method.py", CONFIG, "No module named 'no_such_library'"),
    ("run run.toml --set method.name=token_sync", CONFIG, "method.recorded_run is missing, which token_sync needs"),
    ("run run.toml --set method.name=uni_opd --set learner.samples=1", CONFIG, "set learner.samples to 2 or more"),
    ("run run.toml --set tracking.trackers=['mlflow']", CONFIG, "unknown tracker 'mlflow'"),
    ("run run.toml --set queue.url=hello", CONFIG, "queue.url is not an address: expected redis://"),
    ("run run.toml --set queue.url=redis://host:abc/0", CONFIG, "queue.url is not an address: expected redis://"),
    # Models
    ("run run.toml --set student.path=./nowhere", CONFIG, "student.path = './nowhere': no folder there"),
    ("run run.toml --set teacher.path=models/teacher", CONFIG, "taken as a hub id, but HF_HUB_OFFLINE is set"),
    ("run run.toml --set student.path=models/a--b", CONFIG, "student.path = 'models/a--b': no folder there"),
    ("run run.toml --set teacher.path=no-model", CONFIG, "no model found (expected config.json and *.safetensors)"),
    ("run run.toml --set teacher.path=truncated", CONFIG, "the file is truncated or damaged"),
    ("run run.toml --set teacher.path=other-vocabulary", CONFIG, "Choose a teacher and a student of one family"),
    ("run run.toml --set student.path=no-template", CONFIG, "has no chat template: use an instruct model"),
    ("run run.toml --set rollout.max_tokens=2000", CONFIG, "the student has 1,024 positions, but"),
    ("run run.toml --set data.max_context_tokens=1000", CONFIG, "the teacher has 1,024 positions, but"),
    ("run run.toml --set teacher.max_tokens=500", CONFIG, "raise teacher.max_tokens to 608"),
    # Data
    ("run run.toml --set data.train=nowhere.jsonl", CONFIG, "no problems at nowhere.jsonl: expected a JSONL file"),
    ("run run.toml --set data.train=empty.jsonl", CONFIG, "empty.jsonl contains no problems"),
    ("run run.toml --set data.train=blank.jsonl", CONFIG, "blank.jsonl contains no problems"),
    ("run run.toml --set data.train=latin1.jsonl", CONFIG, "latin1.jsonl, line 1: not UTF-8 text"),
    ("run run.toml --set data.train=utf16.jsonl", CONFIG, "utf16.jsonl, line 1: not UTF-8 text"),
    ("run run.toml --set data.train=not-json.jsonl", CONFIG, "not-json.jsonl, line 1: not JSON"),
    ("run run.toml --set data.train=no-answer.jsonl", CONFIG, "expected an object with id, problem, answer; answer"),
    ("run run.toml --set data.train=array.jsonl", CONFIG, "line 1: expected an object with id, problem, answer"),
    ("run run.toml --set data.train=doubled.jsonl", CONFIG, "duplicate id '1'; ids must be unique"),
    ("run run.toml --set data.train=heldout.jsonl", CONFIG, "ids are in both heldout.jsonl and heldout.jsonl"),
    ("run run.toml --set evaluation.problems=100", CONFIG, "set evaluation.problems to 40 or less"),
    ("run run.toml --set data.train=long.jsonl", CONFIG, "raise the limit or remove the problem"),
    ("run run.toml --set data.train=without-solutions.jsonl --set method.probes=['sol']", CONFIG, "calopd data solve"),
    # Runs that exist, servers that do not
    ("run run.toml --set run.name=existing", CONFIG, "exists: resume it with `calopd run --resume runs/existing`"),
    ("run run.toml --set run.name=thesis", CONFIG, "not empty and not a run: nothing was removed"),
    ("run run.toml --set run.name=thesis --overwrite", CONFIG, "not empty and not a run: nothing was removed"),
    ("run run.toml --set run.dir=table.csv", CONFIG, "table.csv"),
    ("run run.toml --set queue.url=redis://127.0.0.1:1/0", TEMPORARY, "start the Redis server, or correct queue.url"),
    ("run run.toml --set learner.port={busy}", CONFIG, "choose another one with --set learner.port=PORT"),
    ("run --resume runs/existing --set method.relaxation=2", CONFIG, "start a new run to change it"),
    ("report nowhere", CONFIG, "no run at nowhere: expected a directory like runs/demo"),
    ("report runs/thesis", CONFIG, "no run at runs/thesis"),
    ("report runs/damaged", CONFIG, "runs/damaged/config.toml is not valid TOML"),
    ("report compare nowhere", CONFIG, "no run at nowhere: expected a directory like runs/demo"),
    ("report compare runs/existing runs/thesis", CONFIG, "no run at runs/thesis"),
    ("report compare runs/existing runs/damaged", CONFIG, "runs/damaged/config.toml is not valid TOML"),
    ("download nowhere.toml", CONFIG, "cannot read the configuration nowhere.toml"),
    ("download bad-id.toml", CONFIG, "student.path = 'my models/student': no folder there"),
    ("plan run.toml --gpu h1000", CONFIG, "not in the table"),
    ("plan run.toml --lengths nowhere", CONFIG, "--lengths nowhere: no steps are recorded there"),
    ("plan run.toml --count 0", USAGE, "--count: 0: expected 1 or more"),
    # calopd eval
    (f"{EVAL} -n 0", USAGE, "-n: 0: expected 1 or more"),
    (f"{EVAL} --problems 0", USAGE, "--problems: 0: expected 1 or more"),
    (f"{EVAL} --problems -1", USAGE, "--problems: -1: expected 1 or more"),
    (f"{EVAL} --replicas 0", CONFIG, "--replicas 0: expected 1 or more"),
    (f"{EVAL} --temperature -1", CONFIG, "--temperature: expected 0 or more"),
    (f"{EVAL} --temperature hot", USAGE, "--temperature: 'hot': expected a number"),
    (f"{EVAL} --seed x", USAGE, "--seed: 'x': expected a whole number"),
    (f"{EVAL} --seed -1", USAGE, "--seed: -1: expected 0 or more, below 4294967296"),
    (f"{EVAL} --gpus 0,0", CONFIG, "expected different ids such as 0,1,2,3"),
    (f"{EVAL} -o table.csv", CONFIG, "--out table.csv is a file: expected a directory"),
    (EVAL_RUN, CONFIG, "runs/existing is not empty and not an evaluation: choose another --out"),
    (f"{EVAL_RUN} --overwrite", CONFIG, "runs/existing is not empty and not an evaluation: choose another --out"),
    (f"{EVAL} --teacher profesor", CONFIG, "--teacher profesor: no model has this label"),
    ("eval student --benchmark heldout.jsonl --max-tokens 96", CONFIG, "has 1,024 positions, but --max-prompt-tokens"),
    ("eval student --benchmark aime42", CONFIG, "unknown benchmark 'aime42': did you mean aime"),
    ("eval student --benchmark nowhere.jsonl", CONFIG, "no benchmark at nowhere.jsonl: expected a JSONL file"),
    ("eval student --benchmark ,", CONFIG, "--benchmark is empty: give names or files"),
    ("eval nowhere --benchmark heldout.jsonl", CONFIG, "no model at nowhere: expected a model directory"),
    ("eval models/nowhere --benchmark heldout.jsonl", CONFIG, "taken as a hub id, but HF_HUB_OFFLINE is set"),
    ("eval runs/existing@last --benchmark heldout.jsonl", CONFIG, "no model at runs/existing@last: expected"),
    ("eval models/a--b --benchmark heldout.jsonl", CONFIG, "no model at models/a--b: expected"),
    ("eval truncated --benchmark heldout.jsonl --max-tokens 96", CONFIG, "the file is truncated or damaged"),
    ("eval student@5 --benchmark heldout.jsonl", CONFIG, "student is not a run directory"),
    ("eval runs/thesis --benchmark heldout.jsonl", CONFIG, "expected a run directory"),
    ("eval runs/damaged --benchmark heldout.jsonl", CONFIG, "runs/damaged/config.toml is not valid TOML"),
    ("eval runs/existing@9 --benchmark heldout.jsonl", CONFIG, "has no policy or checkpoint 9"),
    ("eval student student --benchmark heldout.jsonl", CONFIG, "two models have the same label"),
    ("eval compare evaluated/student", CONFIG, "has format 99, expected 1: run the evaluation again"),
    ("eval compare nowhere", CONFIG, "no results at nowhere: expected a results.json"),
    # calopd experiment
    ("experiment", USAGE, "required: COMMAND"),
    ("experiment run nowhere.toml", CONFIG, "cannot read the configuration nowhere.toml"),
    ("experiment run run.toml", CONFIG, "title is missing"),
    ("experiment plan price.exp.toml --price -5", USAGE, "--price: -5: expected a number above 0"),
    ("experiment plan price.exp.toml --price nan", USAGE, "--price: 'nan': expected a number"),
    ("experiment run no-problems.exp.toml", CONFIG, "evaluation.problems: expected 1 or more (given: 0)"),
    ("experiment run no-tokens.exp.toml", CONFIG, "evaluation.max_prompt_tokens: expected 1 or more (given: 0)"),
    ("experiment run nothing-at-once.exp.toml", CONFIG, "evaluation.in_flight: expected 1 or more (given: 0)"),
    ("experiment run emulated.exp.toml", CONFIG, "evaluation.engine: expected 'vllm' or 'torch'"),
    ("experiment run bad-seed.exp.toml", CONFIG, "seeds.0: expected 0 or more (given: -1)"),
    ("experiment run no-rollouts.exp.toml", CONFIG, "studies.one.rollouts: expected 1 or more (given: 0)"),
    ("experiment run no-benchmark.exp.toml", CONFIG, "no benchmark at nowhere.jsonl: expected a JSONL file"),
    ("experiment run long-answers.exp.toml", CONFIG, "evaluation.max_prompt_tokens + evaluation.max_tokens = 2,256"),
    ("experiment run long-rollouts.exp.toml", CONFIG, "pair.opd.max_tokens-2000.s0: the student has 1,024 positions"),
    ("experiment run bad-study.exp.toml", CONFIG, "study.one: "),
    ("experiment run taken.exp.toml", CONFIG, "taken/runs/pair.opd.s1 is not empty and not a run: set another `dir`"),
    # calopd data
    ("data prepare train.jsonl -o train.jsonl", CONFIG, "is the source itself: choose another file"),
    ("data prepare nowhere.jsonl -o out.jsonl", CONFIG, "expected a parquet or JSONL file"),
    ("data prepare data/nowhere.jsonl -o out.jsonl", CONFIG, "data/nowhere.jsonl: no file there; expected"),
    ("data prepare data/nowhere.csv -o out.jsonl", CONFIG, "data/nowhere.csv: no file there; expected"),
    ("data prepare owner/problems -o out.jsonl", CONFIG, "owner/problems from the hub: HF_HUB_OFFLINE is set"),
    ("data prepare runs -o out.jsonl", CONFIG, "runs: a folder; expected a parquet or JSONL file"),
    ("data prepare empty.jsonl -o out.jsonl", CONFIG, "no problem is left of 0 rows"),
    ("data prepare only-empty.jsonl -o out.jsonl", CONFIG, "no problem is left of 1 rows"),
    ("data prepare latin1.jsonl -o out.jsonl", CONFIG, "line 1: not UTF-8 text"),
    ("data prepare table.csv -o out.jsonl", CONFIG, "table.csv, line 1: not JSON"),
    ("data prepare array.jsonl -o out.jsonl", CONFIG, "expected problem (or question) and answer"),
    ("data prepare not.parquet -o out.jsonl", CONFIG, "is not a parquet file, or is damaged"),
    ("data prepare train.jsonl -o runs", CONFIG, "--out runs is a folder: expected the name of a file"),
    ("data prepare train.jsonl -o table.csv/out.jsonl", CONFIG, "table.csv: File exists: check the path"),
    (f"{SOLVE} -o train.jsonl", CONFIG, "is the source itself: choose another file"),
    (f"{SOLVE} -o out.jsonl --max-tokens 0", CONFIG, "--max-tokens: expected 1 or more"),
    (f"{SOLVE} -o out.jsonl --seed 4294967296", USAGE, "expected 0 or more, below 4294967296"),
    (f"{SOLVE} -o out.jsonl --in-flight 0", USAGE, "--in-flight: 0: expected 1 or more"),
    (f"{SOLVE} -o solved.jsonl", CONFIG, "was made with model = student, not teacher: choose another --out"),
    (f"{SOLVE} -o newer.jsonl", CONFIG, "was made with min_p = 0.1, not None: choose another --out"),
    (f"{SOLVE} -o torch.jsonl", CONFIG, "was made with engine = torch, not vllm: choose another --out"),
    (f"{SOLVE} -o {{locked}}", CONFIG, "is being written by another process: choose another --out"),
    (f"{SOLVE} -o old.jsonl", CONFIG, "does not say which model made it: choose another --out"),
    ("data solve train.jsonl -o out.jsonl --model teacher", CONFIG, "has 1,024 positions, but --max-prompt-tokens"),
    ("data solve train.jsonl -o out.jsonl --model ./nowhere", CONFIG, "no folder there"),
    ("data solve train.jsonl -o out.jsonl --model my+models/x", CONFIG, "'my+models/x': no folder there"),
    ("data solve long.jsonl -o o --model teacher --max-prompt-tokens 256 --max-tokens 96", CONFIG, "raise it, or"),
    ("data negatives train.jsonl -o train.jsonl --tokenizer student", CONFIG, "is the source itself"),
    ("data negatives train.jsonl -o out.jsonl --tokenizer ./nowhere", CONFIG, "no folder there"),
    # calopd tsd
    ("tsd collect run.toml -o new-study --rollouts -5", USAGE, "--rollouts: -5: expected 1 or more"),
    ("tsd collect run.toml -o new-study --noise-rollouts -5", USAGE, "--noise-rollouts: -5: expected 0 or more"),
    ("tsd collect run.toml -o new-study --flush-seconds 0", USAGE, "expected a number above 0"),
    ("tsd collect -o new-study", CONFIG, "give either a CONFIG to collect with, or --scored JSONL"),
    (f"{STUDY} --contexts evil", CONFIG, "evil"),
    (f"{STUDY} --set teacher.max_tokens=100", CONFIG, "raise teacher.max_tokens to 608"),
    (f"{STUDY} --set rollout.max_tokens=2000", CONFIG, "the student has 1,024 positions, but"),
    (f"{STUDY} --set teacher.path=other-vocabulary", CONFIG, "Choose a teacher and a student of one family"),
    (f"{STUDY} --set teacher.path=models/nowhere", CONFIG, "taken as a hub id, but HF_HUB_OFFLINE is set"),
    ("tsd collect run.toml -o runs/thesis --rollouts 4", CONFIG, "is not empty and not a study: choose another"),
    ("tsd collect run.toml -o study --rollouts 4", CONFIG, "use the same settings to resume it, or choose another"),
    ("tsd collect --scored nowhere.jsonl -o new-study", CONFIG, "nowhere.jsonl"),
    ("tsd analyze nowhere", CONFIG, "nowhere"),
    ("tsd analyze study --tau 0", USAGE, "thresholds must be above 0"),
    ("tsd advise study", CONFIG, "is about 2 rollouts, but 3 are collected: run `calopd tsd analyze study` again"),
    ("tsd show study", CONFIG, "run `calopd tsd analyze study` again"),
    ("tsd report study", CONFIG, "run `calopd tsd analyze study` again"),
    ("tsd compare study study", CONFIG, "run `calopd tsd analyze study` again"),
    ("tsd advise nowhere", CONFIG, "no study at nowhere"),
    ("tsd compare study nowhere", CONFIG, "calopd tsd"),
    # Single services
    ("services.rollout", USAGE, "required: --config"),
    ("services.learner --config run.toml --sett x", USAGE, "unrecognized arguments: --sett x"),
    ("services.rollout --config nowhere.toml", CONFIG, "cannot read the configuration nowhere.toml"),
    ("services.rollout --config run.toml", CONFIG, "queue.url is empty: set it"),
    ("services.rollout --config run.toml --set queue.url=redis://127.0.0.1:1/0", TEMPORARY, "or correct queue.url"),
    ("services.rollout --config run.toml --set queue.url={wrong_password}", CONFIG, "correct user and password"),
    ("services.learner --config run.toml --set queue.url={redis} --set learner.ranks=2", CONFIG, "needs a launcher"),
    ("services.learner --config run.toml --set queue.url=kafka://host/0", CONFIG, "for which there is no backend"),
]  # fmt: skip


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """A Redis server, a port that is in use, and a file that another process writes."""
    folder, port = tmp_path_factory.mktemp("servers"), free_port()
    command, locked = embedded_redis.server_command(folder, port, "secret"), folder / "locked.jsonl"
    with (
        Server(command, embedded_redis.server_url(port, "secret")).running() as server,
        socket.socket() as listener,
        exclusive(attempts_file(locked), "held"),
    ):
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        wrong = embedded_redis.server_url(port, "guess")
        yield {
            "redis": server.url, "wrong_password": wrong, "busy": listener.getsockname()[1], "locked": locked,
        }  # fmt: skip


def command_line(line: str, servers: dict[str, object]) -> list[str]:
    return [word.format(**servers) if word.split("=")[-1].startswith("{") else word for word in line.split()]


@pytest.mark.usefixtures("known_at_once")
@pytest.mark.parametrize(("line", "code", "message"), MISTAKES, ids=[line or "nothing" for line, *_ in MISTAKES])
def test_a_mistake_is_one_line_and_changes_nothing(line, code, message, workspace, servers, monkeypatch, capsys):
    words = command_line(line, servers)
    for name in [name for name in os.environ if name.startswith(("CALOPD", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # a service would start again to set it
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(workspace)
    before = contents(workspace)
    service = bool(words) and words[0].startswith("services.")
    monkeypatch.setattr(sys, "argv", words if service else ["calopd", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(words[0], run_name="__main__") if service else main()
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert (ended.value.code, len(lines), shown.out) == (code, 1, ""), shown
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert not [word for word in ("Traceback", "pydantic", "Input should", "Errno", "NoneType") if word in lines[0]]
    assert contents(workspace) == before


def test_the_table_is_long_and_has_no_line_twice() -> None:
    lines = [line for line, *_ in MISTAKES]
    assert len(set(lines)) == len(lines) >= 80
