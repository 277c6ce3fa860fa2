"""A tokenizer read from its files renders and encodes as transformers does."""

import pytest

from calopd.core.contexts import messages
from calopd.core.types import Problem
from calopd.models.tokenizer_files import FileTokenizer
from calopd.models.tokenizers import load_tokenizer, vocabulary
from tests.services.processes import ROOT

QWEN_LIKE = """{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- bos_token }}<|im_start|>user\n{{ message.content | trim }}<|im_end|>
    {%- else %}
        {{- message | tojson }}
    {%- endif %}
    {%- if loop.last %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>' }}{%- endif %}
{%- endif %}"""


@pytest.mark.parametrize("role", ["student", "teacher"])
def test_prompts_and_ids_are_those_of_transformers(role):
    folder = ROOT / "examples" / "demo" / role
    light, full = FileTokenizer(folder), load_tokenizer(folder)
    turns = messages(Problem("1", "Ana hat 12 Stifte – wie viele?  \n“x”", "12"))
    texts = [t.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) for t in (light, full)]
    assert texts[0] == texts[1]
    ids = [tokenizer.encode(texts[0], add_special_tokens=False) for tokenizer in (light, full)]
    assert ids[0] == ids[1]
    assert light.decode(ids[0]) == full.decode(ids[1])
    assert vocabulary(light) == vocabulary(full)
    assert light.get_added_vocab() == full.get_added_vocab()


def test_a_template_with_filters_loops_and_options_renders_alike(tmp_path):
    full = load_tokenizer(ROOT / "examples" / "demo" / "student")
    full.chat_template = QWEN_LIKE
    full.save_pretrained(tmp_path)
    light, full = FileTokenizer(tmp_path), load_tokenizer(tmp_path)
    turns = messages(Problem("1", '  1 < 2 & "3"?  ', "yes"))
    for options in ({}, {"enable_thinking": False}):
        texts = [
            t.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **options) for t in (light, full)
        ]
        assert texts[0] == texts[1]
