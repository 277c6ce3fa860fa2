"""docs/configuration.md: every setting and environment variable."""

from typing import Any

from calopd.config.load import ENV_PREFIX
from calopd.config.schema import Config
from calopd.config.sections import MethodSection
from calopd.config.sections.base import FIXED_IN_RUN
from calopd.core import methods as methods_package
from calopd.core.environment import OTHER_VARIABLES, VARIABLES, Variable
from calopd.core.methods import METHODS, Method
from docs.generators.markdown import code, table
from docs.generators.settings import settings_of_dataclass, settings_of_section, shown_value

INTRODUCTION = """\
# Configuration

<!-- Generated from the code by `make docs`. Do not edit: change the docstrings in calopd/config/sections/. -->

A run has one TOML file with one table per section. `configs/demo.toml` is a small example. Every setting has a default
unless it is marked as required; the defaults are the paper's recipe. A key that does not exist is refused, with the
nearest one that does.

Values are applied in this order. Later ones take precedence.

1. The defaults.
2. The files that the TOML file extends.
3. The TOML file.
4. Environment variables `CALOPD__SECTION__KEY`, for example `CALOPD__ROLLOUT__MAX_TOKENS=4096`.
5. `--set section.key=value` on the command line, as often as needed: `calopd run configs/demo.toml --set run.steps=5`.

A value in the environment or after `--set` is read as TOML (`4096`, `true`, `["eval", "sol"]`), and as text if it is
not valid TOML.

The resolved configuration is saved with the run, in `config.toml` of the run's directory. The password of the queue is
left out. Settings marked *fixed in a run* must keep their value when the run is resumed; all others may change.

## Building on another file

```toml
extends = "paper.toml"

[student]
path = "Qwen/Qwen3-1.7B"

[teacher]
path = "Qwen/Qwen3-4B-Thinking-2507"
batch_tokens = 65_536
```

`extends` names one TOML file, relative to the file that contains it. That file may extend another one. Tables are
merged key by key; all other values, lists included, are replaced. `configs/paper.toml` holds the settings that the
paper's three pairs share.

A file that is mounted into a container needs its base beside it. The compose files and the manifests mount
`configs/paper.toml` together with the chosen file.
"""

SETTINGS_OF_METHODS = """\
### Settings of each method

These are keys of `[method]` too. A setting of another method is refused; if `--set method.name=...` or a file that
extends another one chooses a different method, the settings of the earlier one are dropped.
"""

RECIPES_OF_METHODS = """\
### Recipe of each method

Defaults from the paper that depend on the method. A value in the configuration takes precedence.
"""


def page() -> str:
    parts = [INTRODUCTION, *(_section(name) for name in Config.model_fields), _environment()]
    return "\n".join(parts)


def _section(name: str) -> str:
    field = Config.model_fields[name]
    section: Any = field.annotation
    paragraphs = [f"## [{name}]", section.__doc__ or ""]
    if FIXED_IN_RUN in field.metadata:
        paragraphs.append("All settings of this section are *fixed in a run*.")
    text = "\n\n".join(paragraphs) + "\n\n" + settings_of_section(section)
    return text + "\n" + _methods() if section is MethodSection else text


def _methods() -> str:
    """The settings and the recipe of each method; methods with the same settings share a table."""
    methods = _shipped_methods()
    sharing: dict[type, list[str]] = {}
    for method in methods:
        sharing.setdefault(method.settings, []).append(code(method.name))
    parts = [SETTINGS_OF_METHODS]
    for settings, names in sharing.items():
        own = settings_of_dataclass(settings) or "None.\n"
        parts.append(f"#### {', '.join(names)}\n\n{own}")
    recipes = table(("Method", "Defaults"), ((code(method.name), _recipe(method)) for method in methods))
    return "\n".join([*parts, RECIPES_OF_METHODS, recipes])


def _shipped_methods() -> list[Method[Any]]:
    """The methods of the package, without those that a user's file has added."""
    package = methods_package.__name__ + "."
    shipped = (method for method in METHODS.values() if method.advantage.__module__.startswith(package))
    return sorted(shipped, key=lambda method: method.name)


def _recipe(method: Method[Any]) -> str:
    recipe = method.recipe
    values = {
        "method.clamp": "none" if recipe.clamp is None else recipe.clamp,
        "method.loss_agg_mode": recipe.loss_agg_mode,
        **{f"learner.{key}": value for key, value in recipe.learner.items()},
    }
    return ", ".join(code(f"{key} = {shown_value(value)}") for key, value in values.items())


def _environment() -> str:
    override = Variable(
        f"{ENV_PREFIX}SECTION__KEY", "Overrides a setting: section and key in capitals, with two underscores between."
    )
    return f"""\
## Environment variables

Secrets and addresses that differ between machines are set in the environment, not in the TOML file.

{_variables((override, *VARIABLES))}
Variables of other libraries that matter here:

{_variables(OTHER_VARIABLES)}
The variables of the compose files are explained in `.env.example`.
"""


def _variables(variables: tuple[Variable, ...]) -> str:
    return table(("Variable", "Default", "Meaning"), ((code(v.name), code(v.default), v.meaning) for v in variables))
