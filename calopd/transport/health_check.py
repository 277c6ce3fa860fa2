"""`python -m calopd.transport.health_check grpc HOST:PORT | http URL`: exit code 0 if the service is healthy."""

import sys
import urllib.request

TIMEOUT_SECONDS = 8.0


def grpc_is_healthy(address: str) -> bool:
    """Return whether the standard health service reports SERVING."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from calopd.transport.auth import channel_credentials

    options = [("grpc.enable_http_proxy", 0)]
    credentials = channel_credentials()
    with (
        grpc.secure_channel(address, credentials, options=options)
        if credentials
        else grpc.insecure_channel(address, options=options)
    ) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        answer = check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS, wait_for_ready=True)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def http_is_healthy(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=TIMEOUT_SECONDS) as answer:
        return bool(answer.status == 200)


def main() -> None:
    kind, where = sys.argv[1:]
    try:
        healthy = {"grpc": grpc_is_healthy, "http": http_is_healthy}[kind](where)
    except Exception as error:  # any failure to answer means unhealthy
        sys.exit(f"{where}: {error}")
    sys.exit(0 if healthy else f"{where}: not serving")


if __name__ == "__main__":
    main()
