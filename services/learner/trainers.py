"""The trainer that the settings name."""

import logging

from calopd.config import Config
from calopd.planning.emulation import Emulation
from services.learner.ranks import Ranks
from services.learner.trainer import Trainer

log = logging.getLogger(__name__)


def build_trainer(config: Config, ranks: Ranks) -> Trainer:
    """A trainer with a model, or one that emulates a GPU."""
    emulation = Emulation.of(config)
    if emulation is None:
        return Trainer(config, ranks)
    log.warning("%s: the time of a GPU passes, and nothing is trained", emulation.name)
    from services.learner.emulated_trainer import EmulatedTrainer

    return EmulatedTrainer(config, ranks, emulation)
