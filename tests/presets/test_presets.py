"""Published systems: each simulates on the same ground, says its staleness, and shows its effect."""

import pytest

from rollplex.costs.geometry import GEOMETRIES
from rollplex.presets import PRESETS, Preset
from rollplex.presets.table import SCHEDULES, label, scenario, simulate_all
from rollplex.schedule import Schedule

CASE = scenario()
PAPERS = {
    "RollMux", "ECHO-2", "Echo", "Relax", "BubbleSpec", "ROLL Flash",
    "LlamaRL", "AsyncFlow", "FlexMARL", "MindSpeed RL", "LeMix", "MSRL",
}  # fmt: skip


def test_every_phase_schedule_of_the_literature_table_is_here() -> None:
    assert set(PRESETS) == PAPERS


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_preset_simulates_and_keeps_the_rules(preset: Preset) -> None:
    preset.timetable.check(live=False)
    made = preset.simulate(CASE, num_steps=2)
    assert made.end_s > 0
    assert 0 <= made.idle_share < 1
    assert min(made.peak_bytes.values()) > 0


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_published_effect_shows(preset: Preset) -> None:
    effect = preset.effect(CASE, preset)
    assert effect.holds, effect
    assert len(set(effect.values.values())) > 1


@pytest.mark.parametrize("name", ["RollMux", "BubbleSpec", "FlexMARL"])
def test_systems_that_claim_to_be_on_policy_are(name: str) -> None:
    assert PRESETS[name].timetable.on_policy


@pytest.mark.parametrize("name", ["Echo", "Relax", "LlamaRL", "AsyncFlow"])
def test_systems_that_are_off_policy_say_so(name: str) -> None:
    assert PRESETS[name].timetable.staleness >= 1


def test_schedules_have_names_of_their_own() -> None:
    names = [label(schedule) for schedule in SCHEDULES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("model", GEOMETRIES)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=label)
def test_every_schedule_has_room_on_one_node(schedule: Schedule, model: str) -> None:
    assert scenario(model, "H100", 1).simulate(schedule, num_steps=1).end_s > 0


def test_on_other_ground_there_is_a_table_and_nothing_to_pass(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate_all(model="Qwen/Qwen2.5-VL-7B-Instruct", device="h100", nodes=1, prompt_tokens=12000)
    assert "passed" not in found
    assert (found["kind"], found["model"], found["cluster"]) == ("predicted", "Qwen2.5-VL-7B", "Cluster(8 x H100)")
    assert {label(schedule) for schedule in SCHEDULES} == set(found["schedules"])
    printed = capsys.readouterr().out
    assert printed.startswith("Simulated, not measured: Qwen2.5-VL-7B, 8 x H100, TP 4 over 2")
    assert "12000 + 400 tokens" in printed


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": "nope"}, "no published model"),
        ({"device": "H9000"}, "known are A100"),
        ({"nodes": 0}, "num_nodes is 0; give"),
        ({"prompt_tokens": 0}, "prompt_tokens is 0; give"),
        ({"response_tokens": -3}, "response_tokens is -3; give"),
    ],
)
def test_ground_that_cannot_be_is_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        simulate_all(**options)  # type: ignore[arg-type]


def test_a_published_effect_is_told_to_be_simulated() -> None:
    preset = PRESETS["FlexMARL"]
    assert preset.effect(CASE, preset).metric.startswith("simulated")
