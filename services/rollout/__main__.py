"""python -m services.rollout --config CONFIG"""

from calopd.local.entry_point import guarded, service_main


def main() -> None:
    config = service_main("rollout", __doc__)

    import asyncio

    from services.rollout.server import serve

    asyncio.run(serve(config))


if __name__ == "__main__":
    guarded(main)
