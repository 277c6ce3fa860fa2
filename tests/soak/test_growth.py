from tests.soak.growth import Series


def test_what_grows_with_the_steps_is_told_from_what_only_warms_up():
    series = Series()
    for step in range(100):
        series.add("leaking", "MB", step, 500 + step)
        series.add("warming up", "MB", step, min(500 + 10 * step, 700))
        series.add("leaking", "keys", step, step // 10)
    growth = {(row.name, row.unit): row.is_flat for row in series.growth(100, {"MB": (0.02, 5.0), "keys": (0.0, 2.0)})}
    assert growth == {("leaking", "MB"): False, ("warming up", "MB"): True, ("leaking", "keys"): False}
