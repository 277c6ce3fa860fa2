"""torchrun --nproc-per-node N -m services.learner --config CONFIG"""

from calopd.local.entry_point import guarded, service_main


def main() -> None:
    config = service_main("learner", __doc__)

    from calopd.models.devices import set_threads
    from services.learner.loop import TrainingLoop
    from services.learner.ranks import Ranks

    set_threads(config.learner.threads)
    ranks = Ranks(config.learner.device)
    TrainingLoop(config, ranks).run()
    ranks.close()


if __name__ == "__main__":
    guarded(main)
