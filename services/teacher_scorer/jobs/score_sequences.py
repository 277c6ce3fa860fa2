"""A job of `calopd doctor`: scores of a response by a plain forward pass over the teacher, and by its engine."""

import gc

import numpy as np
import torch

from calopd.config import Config
from calopd.doctor.model_jobs import Answer, Request, answer_request
from calopd.doctor.score_comparison import CORRECT, EARLY, LATE, NEXT_ID, TEMPERATURES, temperature_name
from calopd.local.entry_point import die_with_launcher, guarded
from calopd.models.devices import choose_device, choose_dtype, dtype_name, set_threads
from calopd.models.loading import load_causal_lm
from services.teacher_scorer.engines import build_engine
from services.teacher_scorer.engines.scoring_engine import SequenceToScore


def score_sequences(config: Config, request: Request) -> Answer:
    """Scores for each prompt of the request: as they should be, with each known mistake, and of the engine."""
    teacher = config.teacher
    set_threads(teacher.threads)
    device = choose_device(teacher.device)
    dtype = choose_dtype(teacher.dtype, device)
    response = np.asarray(request["response_ids"], dtype=np.int32)
    prompts = [np.asarray(ids, dtype=np.int32) for ids in request["prompts"]]
    model = load_causal_lm("teacher.path", teacher.path, dtype, device).eval()
    with torch.inference_mode():
        scores = [expected_scores(model, prompt, response) for prompt in prompts]
    del model
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    answer: Answer = {"dtype": dtype_name(dtype), "expected": {name: [s[name] for s in scores] for name in scores[0]}}
    if request["engine"]:
        engine = build_engine(teacher)
        scored = engine.score([SequenceToScore(prompt, response) for prompt in prompts]).scores
        answer |= {"engine": engine.name, "scores": [own.logprobs.tolist() for own in scored]}
    return answer


def expected_scores(model: torch.nn.Module, prompt: np.ndarray, response: np.ndarray) -> dict[str, list[float]]:
    """Log-probabilities of the response by a plain forward pass, and as known mistakes would change them."""
    device = next(model.parameters()).device
    ids = torch.from_numpy(np.concatenate((prompt, response)).astype(np.int64)).to(device)
    logits = model(input_ids=ids[None], use_cache=False).logits[0].float()
    targets, start = ids[len(prompt) :], len(prompt)

    def read(shift: int = 0, temperature: float = 1.0, wanted: torch.Tensor = targets) -> list[float]:
        rows = torch.arange(start - 1 + shift, len(ids) - 1 + shift, device=device).clamp(min=0)
        logprobs = (logits[rows] / temperature).log_softmax(-1)
        values: list[float] = logprobs.gather(1, wanted[:, None]).squeeze(1).tolist()
        return values

    return {
        CORRECT: read(),
        LATE: read(shift=1),
        EARLY: read(shift=-1),
        NEXT_ID: read(wanted=(targets + 1) % logits.shape[-1]),
        **{temperature_name(value): read(temperature=value) for value in TEMPERATURES},
    }


if __name__ == "__main__":
    die_with_launcher()
    guarded(lambda: answer_request(score_sequences))
