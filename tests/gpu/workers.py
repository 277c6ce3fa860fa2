"""vLLM's worker processes after a query for GPUs, in several environments: `python -m tests.gpu.workers`.

Each case is a process forked before CUDA was touched. It asks torch for GPUs as our code does, then starts a process
the way vLLM starts its engine, which uses the GPU. Prints what became of each.
"""

import json
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection


def use_gpu(answers: Connection) -> None:
    import torch

    try:
        torch.cuda.init()
        answers.send(f"uses {torch.cuda.get_device_name()}")
    except RuntimeError as error:
        answers.send(str(error))


def start_as_vllm_does(prepare: Callable[[], object], answers: Connection) -> None:
    import torch
    from vllm.utils.system_utils import get_mp_context

    prepare()
    assert torch.cuda.is_available()
    context = get_mp_context()
    worker = context.Process(target=use_gpu, args=(answers,))
    worker.start()
    worker.join()


def nothing() -> None:
    pass


def our_set_up() -> None:
    """What an engine calls before it imports vLLM."""
    from calopd.models.devices import set_vllm_environment

    set_vllm_environment(1, 1)
    assert os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0", "a GPU host was taken for one without GPUs"


def nvml_only() -> None:
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"


def spawn_only() -> None:
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"


def main() -> None:
    import torch  # noqa: F401  (once, for all cases)
    import vllm.utils.system_utils  # noqa: F401

    # Importing vLLM sets it, too late for a process that asked for GPUs before.
    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    context = multiprocessing.get_context("fork")
    found = {}
    for prepare in (nothing, our_set_up, nvml_only, spawn_only):
        receiver, sender = context.Pipe(duplex=False)
        case = context.Process(target=start_as_vllm_does, args=(prepare, sender))
        case.start()
        sender.close()
        try:
            found[prepare.__name__] = receiver.recv()
        except EOFError:
            found[prepare.__name__] = "no answer"
        case.join()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
