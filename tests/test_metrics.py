import math
from dataclasses import replace

import pytest
import torch
from views import fakes

from rollplex.metrics import concurrent_s, hidden_prefix_s, metrics
from rollplex.step import RewardGroup, Rewards
from rollplex.trace import Tick, Trace

NAN = float("nan")


def test_a_full_step_has_the_names_of_trl_and_verl() -> None:
    values = metrics(fakes.step(0), fakes.trace(0))
    assert set(values) == {
        *("reward", "reward_std", "frac_reward_zero_std", "rewards/exact/mean", "rewards/exact/std"),
        *(f"completions/{name}_length" for name in ("mean", "min", "max", "mean_terminated")),
        *("completions/clipped_ratio", "loss", "kl", "entropy", "clip_ratio/region_mean", "actor/pg_loss"),
        *("actor/grad_norm", "actor/lr", *(f"training/rollout_probs_diff_{name}" for name in ("mean", "max", "level"))),
        *(f"timing_s/{name}" for name in ("decode", "prefix", "reward", "suffix", "update", "step")),
        *("perf/throughput", "perf/total_num_tokens", "overlap/hidden_prefix_s", "overlap/exposed_prefix_s"),
        *(f"memory/{owner}_gib" for owner in ("policy.weights", "rollout.kv", "policy.boundary")),
        "weights/version",
    }


def test_rewards_leave_out_what_was_not_scored() -> None:
    values = metrics(fakes.step(0, scores=[[1.0, 0.0, NAN], [1.0, 1.0, 1.0], [NAN, NAN, NAN]]), Trace())
    assert values["reward"] == pytest.approx(4 / 5)
    assert values["reward_std"] == pytest.approx((math.sqrt(0.5) + 0.0) / 2)
    assert values["frac_reward_zero_std"] == pytest.approx(2 / 3)


def test_a_function_that_scored_some_prompts_only_has_a_mean_over_those() -> None:
    half = RewardGroup(prompt=0, values=torch.tensor([1.0, 0.0]), by_function={"format": torch.tensor([1.0, 0.0])})
    none = RewardGroup(prompt=1, values=torch.tensor([1.0, 0.0]), by_function={})
    values = metrics(replace(fakes.step(0), rewards=Rewards(groups=(half, none), step=0)), Trace())
    assert values["rewards/format/mean"] == 0.5


def test_numbers_over_empty_sets_are_left_out() -> None:
    unscored = metrics(fakes.step(0, scores=[[NAN, NAN]]), Trace())
    assert "reward" not in unscored
    assert "rewards/exact/mean" not in unscored
    assert not any(math.isnan(value) for value in unscored.values())
    cut = metrics(
        fakes.step(0, scores=[[1.0]]), Trace()
    )  # the last response of a fake group is cut: here, the only one
    assert cut["completions/clipped_ratio"] == 1.0
    assert "completions/mean_terminated_length" not in cut
    assert "reward_std" not in cut


def test_a_diverged_loss_is_not_hidden() -> None:
    step = replace(fakes.step(0), suffix=fakes.suffix(0, [[1.0, 0.0]], loss=NAN))
    assert math.isnan(metrics(step, Trace())["loss"])


def test_lengths_tell_ended_from_cut() -> None:
    values = metrics(fakes.step(0, scores=[[0.0, 1.0, 0.0]]), Trace())
    assert values["completions/mean_length"] == 2.0
    assert values["completions/mean_terminated_length"] == 1.5
    assert values["completions/clipped_ratio"] == pytest.approx(1 / 3)


def test_both_prefixes_count_as_prefix_time() -> None:
    assert metrics(fakes.step(0), fakes.trace(0))["timing_s/prefix"] == pytest.approx(0.8)


def test_times_are_of_the_step_asked_for() -> None:
    values = metrics(fakes.step(1), fakes.trace(0, 1, 2))
    assert values["timing_s/step"] == pytest.approx(1.9)
    assert values["timing_s/decode"] == pytest.approx(1.0)


def test_tokens_count_a_prompt_for_each_of_its_responses() -> None:
    values = metrics(fakes.step(0), fakes.trace(0))
    assert values["perf/total_num_tokens"] == 2 * (2 * 10) + 2 * (1 + 2)
    assert values["perf/throughput"] == pytest.approx(46 / 1.9)


def test_prefix_work_beside_decoding_is_hidden() -> None:
    values = metrics(fakes.step(0), fakes.trace(0))
    assert values["overlap/hidden_prefix_s"] == pytest.approx(0.8)
    assert values["overlap/exposed_prefix_s"] == pytest.approx(0.0)


def test_lanes_that_take_turns_hide_nothing() -> None:
    values = metrics(fakes.step(0), fakes.turns())
    assert values["overlap/hidden_prefix_s"] == pytest.approx(0.0)
    assert values["overlap/exposed_prefix_s"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("start", "end", "hidden"),
    [(0.0, 0.5, 0.0), (0.5, 1.5, 0.5), (1.2, 1.4, 0.2), (1.5, 3.5, 1.0), (2.0, 3.0, 0.0)],
    ids=["before", "across the start", "within", "across a pause between tokens", "in the pause"],
)
def test_hidden_time_is_the_intersection_with_decode_ticks(start: float, end: float, hidden: float) -> None:
    decode = [Tick(0, "P1", "a", "decode", "", 1.0, 2.0), Tick(0, "P1", "a", "decode", "", 3.0, 4.0)]
    prefix = Tick(0, "P1", "b", "prefix(policy)", "", start, end)
    assert hidden_prefix_s(Trace(ticks=[*decode, prefix])) == pytest.approx(hidden)


def test_prefix_on_the_decode_lane_is_never_hidden() -> None:
    ticks = [Tick(0, "P1", "a", "decode", "", 0.0, 1.0), Tick(0, "P1", "a", "prefix(policy)", "", 0.2, 0.8)]
    assert hidden_prefix_s(Trace(ticks=ticks)) == 0.0


def test_three_lanes_at_once_count_once() -> None:
    assert concurrent_s(Trace(ticks=[Tick(0, "P1", lane, "x", "", 0.0, 1.0) for lane in "abc"])) == 1.0


def test_slowdown_needs_a_baseline() -> None:
    baseline = Trace(ticks=[Tick(7, "P1", "a", "decode", "", 0.0, 0.75)], schedules={7: "Serial"})
    step, trace = fakes.step(0), fakes.trace(0)
    assert "overlap/decode_slowdown_s" not in metrics(step, trace)
    assert metrics(step, trace, baseline)["overlap/decode_slowdown_s"] == pytest.approx(0.25)


def test_memory_is_the_peak_of_the_step_by_owner() -> None:
    assert metrics(fakes.step(0), fakes.trace(0))["memory/policy.boundary_gib"] == 4 / 1024


def test_the_version_is_the_one_that_the_update_made() -> None:
    assert metrics(fakes.step(4), Trace())["weights/version"] == 5.0
    assert metrics(replace(fakes.step(4), update=None), Trace())["weights/version"] == 4.0
