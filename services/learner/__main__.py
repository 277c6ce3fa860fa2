"""torchrun --nproc-per-node N -m services.learner --config CONFIG"""

import os

from calopd.core.errors import ConfigError
from calopd.local.entry_point import guarded, service_main


def main() -> None:
    # Memory blocks that grow, because micro-batches differ in length. torch reads it when it is imported.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    config = service_main("learner", __doc__)
    if "WORLD_SIZE" not in os.environ:
        raise ConfigError("the learner runs under torchrun: torchrun --nproc-per-node 1 -m services.learner …")

    from calopd.models.devices import set_threads
    from calopd.tracking.trace import start_trace
    from services.learner.loop import TrainingLoop
    from services.learner.peer_loss import exit_if_peer_lost
    from services.learner.ranks import Ranks

    set_threads(config.learner.threads)
    with exit_if_peer_lost():
        ranks = Ranks(config.learner)
        if config.run.trace:
            start_trace(config.run_dir, f"learner-rank-{ranks.rank}")
        TrainingLoop(config, ranks).run()
    ranks.close()


if __name__ == "__main__":
    guarded(main)
