"""Costs of scoring besides the model: python -m benchmarks.teacher_costs   (part of `make bench-teacher`)

Memory: peak above the loaded model for three contexts and growing response lengths at V = 151,936, ours and naive.
Contexts: seconds for 1, 3 and 9 contexts, with and without prefix reuse, and the share of tokens reused.
Transport: CPU milliseconds of client, gRPC and servicer per request, measured with an engine that computes nothing.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch

from benchmarks.model_builders import qwen3_vocab, smollm2
from benchmarks.teacher import SHARED, draw_work
from benchmarks.teacher_service import ROOT, Work, serving
from calopd.config.sections import TeacherSection
from calopd.core.contexts import BASE, CONTEXTS
from calopd.transport.teacher_client import TeacherClient
from calopd.transport.v1.teacher_scorer_pb2_grpc import add_TeacherScorerServicer_to_server
from services.teacher_scorer.engines.scoring_engine import BatchScores, SequenceScores, SequenceToScore
from services.teacher_scorer.scheduler import Scheduler
from services.teacher_scorer.server import message_options
from services.teacher_scorer.servicer import Limits, Servicer

RESULTS = Path(__file__).parent / "results" / "teacher_costs.json"
VOCABULARY = 151_936
LENGTHS = (1_024, 4_096, 16_384)
NAIVE_LENGTH = 2_048
REPEATS = 1
NAIVE = """
import resource, sys, torch
from transformers import AutoModelForCausalLM
lm = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
ids = torch.randint(lm.config.vocab_size, (1, int(sys.argv[2])))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with torch.inference_mode():
    lm(ids, use_cache=False).logits.log_softmax(-1).gather(2, ids[..., None])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def response_of(tokens: int, contexts: int = 3) -> Work:
    draw = np.random.default_rng(tokens)
    prompts = {f"c{i}": draw.integers(0, VOCABULARY, SHARED + 10 * i, np.int32) for i in range(contexts)}
    return [(draw.integers(0, VOCABULARY, tokens, np.int32), prompts)]


def memory() -> dict[str, Any]:
    path = qwen3_vocab()
    peaks = {}
    for tokens in LENGTHS:
        with serving(path) as service, service.peak_above_now() as peak:
            service.score(response_of(tokens))
        peaks[tokens] = round(peak[0])
    command = [sys.executable, "-c", NAIVE, str(path), str(NAIVE_LENGTH)]
    naive = float(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    return {
        "peak_mib_above_loaded_by_response_tokens": peaks,
        f"naive_mib_for_one_context_of_{NAIVE_LENGTH}": round(naive),
        f"naive_mib_for_one_context_of_{LENGTHS[-1]}_by_proportion": round(naive * LENGTHS[-1] / NAIVE_LENGTH),
    }


def contexts() -> dict[str, Any]:
    """Two responses with SmolLM2, under contexts with the lengths of the paper's."""
    path = smollm2()
    names = [BASE, "eval+", "eval-", *(name for name in CONTEXTS if not name.startswith("eval"))]
    lengths = dict(zip(names, (5, 33, 36, 27, 26, 38, 38, 180, 180), strict=True))
    found: dict[str, Any] = {}
    with serving(path) as shared, serving(path, share_prefixes=False) as unshared:
        for count in (1, 3, 9):
            work = draw_work(49_152, 2, {name: lengths[name] for name in names[:count]})
            seconds: dict[str, list[float]] = {"with": [], "without": []}
            before = [shared.metric(f"calopd_teacher_{kind}_tokens_total") for kind in ("reused", "forward")]
            for _ in range(REPEATS):
                seconds["with"].append(shared.score(work)[0]["cpu"])
                seconds["without"].append(unshared.score(work)[0]["cpu"])
            after = [shared.metric(f"calopd_teacher_{kind}_tokens_total") for kind in ("reused", "forward")]
            reused, computed = (b - a for a, b in zip(before, after, strict=True))
            found[str(count)] = {
                "cpu_seconds_with_reuse": round(statistics.median(seconds["with"]), 2),
                "cpu_seconds_without": round(statistics.median(seconds["without"]), 2),
                "reused_share_of_tokens": round(reused / (reused + computed), 3),
            }
    return found


class NoopEngine:
    """Returns placeholder scores immediately, so that only the transport is measured."""

    name = model = revision = "noop"
    vocabulary_size = VOCABULARY
    max_positions = 32_768
    dtype = torch.float32

    @classmethod
    def configured(cls, teacher: TeacherSection, *, deterministic: bool = False) -> "NoopEngine":
        return cls()

    def score(self, sequences: list[SequenceToScore]) -> BatchScores:
        rows = [SequenceScores(np.linspace(-9, -1, len(s.response_ids), dtype=np.float32)) for s in sequences]
        return BatchScores(rows, computed_tokens=1)

    def reference(self, sequence: SequenceToScore) -> np.ndarray:
        raise NotImplementedError


def transport() -> dict[str, Any]:
    work = response_of(LENGTHS[-1])
    ((response, prompts),) = work
    calls = 50

    async def run() -> float:
        limits = Limits(max_tokens=32_768, max_contexts=16, max_top_k=64)
        scheduler = Scheduler(NoopEngine(), batch_tokens=8_192, max_waiting=64)
        server = grpc.aio.server(options=message_options(limits))
        add_TeacherScorerServicer_to_server(Servicer(NoopEngine(), scheduler, ["a"], limits), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        client = TeacherClient([f"127.0.0.1:{port}"])
        await client.score("warm", response, prompts)
        start = time.process_time()
        for i in range(calls):
            await client.score(str(i), response, prompts)
        spent = time.process_time() - start
        await client.close()
        await server.stop(None)
        scheduler.stop()
        return spent / calls

    seconds = asyncio.run(run())
    with serving(qwen3_vocab()) as service:
        service.score(response_of(1_024))
        scoring = service.score(work)[0]["cpu"]
    return {
        "cpu_milliseconds_per_request": round(1e3 * seconds, 2),
        "cpu_seconds_of_scoring_it": round(scoring, 2),
        "share_percent": round(100 * seconds / scoring, 4),
    }


def main() -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    parts = {"memory": memory, "contexts": contexts, "transport": transport}
    for name in sys.argv[1:] or list(parts):
        print(f"{name} ...", flush=True)
        results[name] = parts[name]()
        print(json.dumps(results[name], indent=1), flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
