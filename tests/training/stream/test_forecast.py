"""What comes next is foreseen from the passes before."""

from openwafer.training.stream.forecast import Forecast


def learned(*passes: str) -> Forecast:
    forecast = Forecast()
    for calls in passes:
        forecast.learn(calls.split())
    return forecast


def test_a_pass_is_foreseen_as_the_one_before_it() -> None:
    assert learned("a b c").calls_behind(None) == ("a", "b", "c")
    assert learned("a b c").calls_behind("b") == ("c",)


def test_nothing_is_foreseen_of_passes_that_nobody_saw() -> None:
    assert Forecast().calls_behind(None) == ()


def test_later_passes_count_for_more() -> None:
    assert learned("a b", "a c").calls_behind("a") == ("c",)


def test_calls_that_come_by_chance_are_foreseen_as_far_as_they_are_likely() -> None:
    assert learned("a b c", "a d c", "a e c", "a f c").calls_behind(None) == ("a",)


def test_a_repeated_layer_is_foreseen_as_often_as_it_mostly_runs() -> None:
    assert learned("in loop loop loop loop out").calls_behind("in") == ("loop", "loop", "loop")
