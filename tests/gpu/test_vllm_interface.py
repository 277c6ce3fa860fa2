"""Everything that the engines touch of vLLM exists in its source, also in the code that runs on GPUs only."""

import ast
from functools import cache
from pathlib import Path

import pytest
import vllm

from calopd.models.vllm_interface import TOUCHED, Touched
from tests.gpu.touched_names import ENGINES, Use, attributes, function, keywords, parameters
from tests.gpu.vllm_source import defined_names
from tests.services.processes import ROOT

PACKAGE = Path(vllm.__file__).parent
SCORER = "services/teacher_scorer/engines/response_scorer.py"
SAMPLER = "services/rollout/engines/vllm_sampler.py"
ENGINE = Touched("v1/engine/llm_engine.py", "LLMEngine", ())
PUBLIC = {
    "LLMEngine": ENGINE,
    "EngineArgs": Touched("engine/arg_utils.py", "EngineArgs", ()),
    "SamplingParams": Touched("sampling_params.py", "SamplingParams", ()),
    "RequestOutput": Touched("outputs.py", "RequestOutput", ()),
    "CompletionOutput": Touched("outputs.py", "CompletionOutput", ()),
}
OBJECTS = {
    "self._engine": "LLMEngine",
    "engine": "LLMEngine",
    "LLMEngine": "LLMEngine",
    "output": "RequestOutput",
    "completion": "CompletionOutput",
    "output.outputs[0]": "CompletionOutput",
}
CALLS = {"EngineArgs": "EngineArgs", "SamplingParams": "SamplingParams", "engine.reset_prefix_cache": "LLMEngine"}
INSIDE = [
    # In our function, the object is one of this class; what is touched must be in the table that the engines check.
    (SCORER, "attach_v1", {"runner": "v1/worker/gpu_model_runner.py", "request": "v1/worker/gpu_input_batch.py"}),
    (
        SCORER,
        "attach_v2",
        {"worker": "v1/worker/gpu/sample/prompt_logprob.py", "batch": "v1/worker/gpu/input_batch.py"},
    ),
    (
        SCORER,
        "choose_head",
        {
            "lm_head": "model_executor/layers/vocab_parallel_embedding.py",
            "shard": "model_executor/layers/vocab_parallel_embedding.py",
            "processor": "model_executor/layers/logits_processor.py",
        },
    ),
    *(
        (SAMPLER, "load_policy", {"runner": runner, "module": "model_executor/layers/vocab_parallel_embedding.py"})
        for runner in ("v1/worker/gpu_model_runner.py", "v1/worker/gpu/model_runner.py")
    ),
]
TORCH_NAMES = {"weight", "bias"}
"""Of every layer of torch."""


@cache
def public_names(owner: str) -> set[str]:
    names = defined_names(vllm, PUBLIC[owner])
    if owner == "LLMEngine":
        names |= parameters(ast.parse((PACKAGE / ENGINE.file).read_text()), "LLMEngine", "reset_prefix_cache")
    return names


def missing(uses: set[Use]) -> list[str]:
    """Uses of the public interface that its source does not have."""
    absent = sorted((use.line, use.owner, use.name) for use in uses if use.name not in public_names(use.owner))
    return [f"line {line}: {owner} has no {name}" for line, owner, name in absent]


def public_uses(source: str) -> set[Use]:
    tree = ast.parse(source)
    return {*attributes(tree, OBJECTS), *keywords(tree, CALLS)}


def engine_sources() -> list[Path]:
    found = [file for folder in ENGINES for file in (ROOT / folder).glob("*.py") if "from vllm" in file.read_text()]
    assert len(found) >= 3
    return found


@pytest.mark.parametrize("file", engine_sources(), ids=lambda file: file.stem)
def test_the_public_interface_has_what_the_engines_use(file):
    assert missing(public_uses(file.read_text())) == []


def test_the_engines_use_much_of_it():
    """The check sees what is there: it would be empty if the engines renamed their variables."""
    names = {use.name for file in engine_sources() for use in public_uses(file.read_text())}
    assert names >= {
        "from_engine_args", "add_request", "step", "collective_rpc", "reset_prefix_cache", "reset_running_requests",
        "has_unfinished_requests", "abort_request", "max_num_batched_tokens", "gpu_memory_utilization",
        "worker_extension_cls", "prompt_logprobs", "token_ids", "finish_reason",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("self._engine.score_prompts()", "LLMEngine has no score_prompts"),
        ("EngineArgs(model=m, gpu_share=0.9)", "EngineArgs has no gpu_share"),
        ("settings |= {'gpu_share': 0.9}", "EngineArgs has no gpu_share"),
        ("SamplingParams(prompt_scores=1)", "SamplingParams has no prompt_scores"),
        ("engine.reset_prefix_cache(force=True)", "LLMEngine has no force"),
    ],
)
def test_a_made_up_name_is_reported(line, said):
    assert missing(public_uses(line)) == [f"line 1: {said}"]


@pytest.mark.parametrize("touched", TOUCHED, ids=lambda touched: f"{touched.file}:{touched.owner}")
def test_the_inner_parts_have_what_the_engines_use(touched):
    assert set(touched.names) <= defined_names(vllm, touched)


@pytest.mark.parametrize(("file", "name", "objects"), INSIDE, ids=lambda value: value if isinstance(value, str) else "")
def test_the_table_names_every_inner_part_that_is_touched(file, name, objects):
    uses = set(attributes(function(ast.parse((ROOT / file).read_text()), name), objects))
    assert {use.owner for use in uses} == set(objects.values())
    for use in uses:
        listed = {known for touched in TOUCHED if touched.file == use.owner for known in touched.names}
        assert use.name in listed | TORCH_NAMES, f"line {use.line}: {use.name} is not in vllm_interface.TOUCHED"


def test_model_runner_v2_calls_the_scorer_with_these_arguments():
    """Our functions in place of the worker's are called by position."""
    tree = ast.parse((PACKAGE / "v1/worker/gpu/model_runner.py").read_text())
    calls = {
        node.func.attr: [ast.unparse(argument) for argument in node.args]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "self.prompt_logprobs_worker"
    }
    assert calls["compute_prompt_logprobs"][1:3] == ["hidden_states", "input_batch"]
    assert calls["add_request"] == ["req_id", "req_index", "new_req_data.sampling_params"]
    assert calls["remove_request"] == ["req_id"]
