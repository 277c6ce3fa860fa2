"""Tokenizer files read without transformers and torch, whose import takes seconds: for the checks before a start."""

import json
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from calopd.core.errors import ConfigError


class FileTokenizer:
    """The part of a tokenizer that renders and encodes prompts, from tokenizer.json and its chat template."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
            template = folder / "chat_template.jinja"
            self.chat_template = (
                template.read_text(encoding="utf-8") if template.is_file() else self._settings.get("chat_template")
            )
        except Exception as error:  # the tokenizers library raises plain Exception
            raise ConfigError(f"no tokenizer at {folder}: {(str(error).splitlines() or [''])[0]}") from None
        if not self.chat_template:
            raise ConfigError(f"the tokenizer at {folder} has no chat template: use an instruct model")
        if isinstance(self.chat_template, list):  # named templates
            named = {entry["name"]: entry["template"] for entry in self.chat_template}
            self.chat_template = named.get("default") or next(iter(named.values()))

    def get_vocab(self) -> dict[str, int]:
        """Token -> id, added tokens included."""
        tokens: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        added = self._settings.get("added_tokens_decoder", {})
        return tokens | {entry["content"]: int(number) for number, entry in added.items()}

    def get_added_vocab(self) -> dict[str, int]:
        return {token.content: number for number, token in self._tokenizer.get_added_tokens_decoder().items()}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def apply_chat_template(
        self, turns: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool, **options: Any
    ) -> str:
        """Render the turns as transformers does; only text is returned."""
        assert not tokenize
        special = {key: _text(value) for key, value in self._settings.items() if key.endswith("_token")}
        values = {"messages": turns, "add_generation_prompt": add_generation_prompt, **special, **options}
        text: str = self._template.render(values)
        return text

    @cached_property
    def _template(self) -> Any:
        return _environment().from_string(self.chat_template)


def has_tokenizer_files(folder: Path) -> bool:
    """Whether the files suffice; a tokenizer of another format needs transformers."""
    return (folder / "tokenizer.json").is_file() and (folder / "tokenizer_config.json").is_file()


def _text(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def _environment() -> Any:
    """Jinja with the options and functions that chat templates may use."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"the chat template refuses the prompt: {message}")
