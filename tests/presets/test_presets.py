"""Published systems: each simulates on the same ground, says its staleness, and shows its effect."""

import pytest

from rollplex.presets import PRESETS, Preset
from rollplex.presets.table import SCHEDULES, label, scenario

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
