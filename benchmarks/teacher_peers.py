"""Process of one peer of the teacher benchmark: python -m benchmarks.teacher_peers MODEL KIND

KIND is transformers or vllm. Reads one JSON {"way", "sequences": [[prompt ids, response ids], ...]} per line and
answers each with one {"cpu", "wall", "checksum"}.
"""

import json
import os
import sys
import time
from collections.abc import Callable

Sequences = list[tuple[list[int], list[int]]]
Ways = dict[str, Callable[[Sequences], float]]


def transformers_ways(path: str) -> Ways:
    import torch
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def rows(logits: torch.Tensor, prompt: list[int], response: list[int]) -> float:
        own = logits[: len(prompt) + len(response)].log_softmax(-1)[len(prompt) - 1 : -1]
        return float(own.gather(1, torch.tensor(response)[:, None]).sum())

    def naive(sequences: Sequences) -> float:
        return sum(rows(lm(torch.tensor([p + r]), use_cache=False).logits[0], p, r) for p, r in sequences)

    def padded(sequences: Sequences) -> float:
        longest = max(len(p) + len(r) for p, r in sequences)
        ids = torch.tensor([p + r + [0] * (longest - len(p) - len(r)) for p, r in sequences])
        logits = lm(ids, use_cache=False).logits
        return sum(rows(own, p, r) for own, (p, r) in zip(logits, sequences, strict=True))

    def limit(sequences: Sequences) -> float:
        """The transformer body, plus the LM head's product on response positions: no softmax, no transport."""
        for p, r in sequences:
            hidden = lm.model(torch.tensor([p + r[:-1]]), use_cache=False).last_hidden_state[0]
            lm.lm_head(hidden[len(p) - 1 :])
        return 0.0

    ways: Ways = {"naive": naive, "padded": padded, "limit": limit}
    return {name: torch.inference_mode()(way) for name, way in ways.items()}


def vllm_ways(path: str) -> Ways:
    from calopd.models.devices import set_vllm_environment

    set_vllm_environment(2, 2)
    from vllm import LLM, SamplingParams

    llm = LLM(
        path, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=2_048,
        max_num_batched_tokens=2_048, max_logprobs=16, seed=0,
    )  # fmt: skip

    def stock(k: int) -> Callable[[Sequences], float]:
        parameters = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=k, detokenize=False)

        def score(sequences: Sequences) -> float:
            prompts = [{"prompt_token_ids": p + r} for p, r in sequences]
            total = 0.0
            for output, (p, r) in zip(llm.generate(prompts, parameters, use_tqdm=False), sequences, strict=True):
                found = output.prompt_logprobs[len(p) :]
                total += sum(row[token].logprob for row, token in zip(found, r, strict=True))
            return total

        return score

    return {"vllm_16": stock(16), "vllm_0": stock(0)}


def main(path: str, kind: str) -> None:
    # Output of libraries goes to stderr; stdout carries only the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    ways = transformers_ways(path) if kind == "transformers" else vllm_ways(path)
    answers.write("ready\n")
    for line in sys.stdin:
        asked = json.loads(line)
        wall, cpu = time.perf_counter(), time.process_time()
        checksum = ways[asked["way"]](asked["sequences"])
        spent = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "checksum": checksum}
        answers.write(json.dumps(spent) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
