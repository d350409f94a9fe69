"""One published effect for each system, computed: which side wins, and how that changes with what its paper varies."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from rollplex.costs.geometry import GEOMETRIES
from rollplex.costs.placement import PlacementError
from rollplex.costs.residency import NAIVE
from rollplex.hardware import LINKS, Link
from rollplex.presets.preset import Effect, Preset, step_s
from rollplex.presets.serving import throughput_ratio
from rollplex.scenario import Scenario
from rollplex.schedule import Schedule
from rollplex.schedules import Serial
from rollplex.schedules_pools import BoundedStaleness, Disaggregated, Multiplexed, Streaming

STEPS = 8


def _time(scenario: Scenario, schedule: Schedule, share: float = 0.5, **placement: object) -> float:
    placed = replace(scenario.usual_placement(), **placement)  # pyright: ignore[reportArgumentType]
    made = scenario.simulate(schedule, placed, rollout_share=share, num_steps=STEPS)
    return step_s(made, skip=4)


def _best_split(scenario: Scenario, schedule: Schedule) -> float:
    """The least step over a few splits of the devices; one that leaves a pool empty is none."""
    times: list[float] = []
    for share in (0.25, 0.5, 0.75):
        with suppress(PlacementError):
            times.append(_time(scenario, schedule, share))
    return min(times)


def multiplexing(scenario: Scenario, preset: Preset) -> Effect:
    """RollMux: two jobs on two pools cost less a step than two disaggregated ones, most where the phases balance."""
    values: dict[str, float] = {}
    for tokens in (50, 400, 1600):
        case = replace(scenario, workload=scenario.workload.with_(response_tokens=tokens))
        alone = _time(case, Disaggregated())
        placed = case.usual_placement()
        both = step_s(case.simulate(Multiplexed(), placed, num_jobs=2, num_steps=STEPS), skip=3)
        share = _rollout_share(case)
        values[f"{share:.2f}"] = alone / both
    best = max(values, key=lambda key: values[key])
    balanced = min(values, key=lambda key: abs(float(key) - 0.5))
    return Effect(
        claim="two jobs that share two pools cost less than two pools each, most where rollout and training balance",
        parameter="rollout's share of a disaggregated step",
        metric="simulated cost efficiency over disaggregation",
        values=values,
        holds=all(v > 1 for v in values.values()) and best == balanced,
    )


def _rollout_share(case: Scenario) -> float:
    trace = case.simulate(Disaggregated(), case.usual_placement(), num_steps=STEPS).trace
    steps = trace.steps()
    return sum(trace.busy_s(s)["decode"] for s in steps) / sum(trace.step_s(s) for s in steps)


def hidden_broadcast(scenario: Scenario, preset: Preset) -> Effect:
    """ECHO-2: over a slow link, allowed staleness hides the broadcast; over a fast one it has nothing to hide."""
    values: dict[str, float] = {}
    for name, link in (("wide area", wide_area(40e9)), ("InfiniBand", LINKS["InfiniBand 400"])):
        for staleness in (1, 4):
            seconds = _time(scenario, BoundedStaleness(staleness), sites=2, between_sites=link)
            values[f"{name}, staleness {staleness}"] = seconds
    slow = values["wide area, staleness 1"] / values["wide area, staleness 4"]
    fast = values["InfiniBand, staleness 1"] / values["InfiniBand, staleness 4"]
    return Effect(
        claim="a staleness bound above 1 pays over a wide-area link, because it hides the broadcast, and less over a fast one",
        parameter="link to the rollout sites, staleness bound",
        metric="simulated step seconds",
        values=values,
        holds=slow > 1.05 and slow > fast,
    )


def wide_area(bits_per_s: float) -> Link:
    """A link across a continent."""
    return Link(name="wide area", bytes_per_s=bits_per_s / 8, latency_s=30e-3, source="an assumption")


def pull_or_push(scenario: Scenario, preset: Preset) -> Effect:
    """Echo: asynchronous push-pull is faster than sequential pull, which in turn is on-policy."""
    values = {"sequential pull": _time(scenario, Disaggregated()), "push-pull": _time(scenario, BoundedStaleness(1))}
    return Effect(
        claim="asynchronous push-pull keeps both swarms busy; sequential pull makes each wait for the other",
        parameter="protocol",
        metric="simulated step seconds",
        values=values,
        holds=values["push-pull"] < values["sequential pull"],
    )


def staleness_saturates(scenario: Scenario, preset: Preset) -> Effect:
    """Relax: the first unit of staleness buys most of the speed."""
    values = {"0": _time(scenario, Streaming())}
    values |= {str(n): _time(scenario, Streaming(n)) for n in (1, 2, 4)}
    first, rest = values["0"] - values["1"], values["1"] - values["4"]
    return Effect(
        claim="raising max_staleness from 0 makes steps faster, with diminishing returns",
        parameter="max_staleness",
        metric="simulated step seconds",
        values=values,
        holds=first > 0 and first > rest >= -1e-9,
    )


def drafts(scenario: Scenario, preset: Preset) -> Effect:
    """BubbleSpec: halving decode iterations pays the more, the more of a step is decode, and stays synchronous."""
    gains: list[tuple[float, float]] = []
    for tokens in (100, 400, 1200):
        case = replace(scenario, workload=scenario.workload.with_(response_tokens=tokens))
        trace = case.simulate(Serial(), case.usual_placement(), num_steps=STEPS).trace
        share = sum(trace.busy_s(s)["decode"] for s in trace.steps()) / trace.ticks[-1].end_s
        gains.append((share, _time(case, Serial()) / _time(case, Serial(), accepted=2.0)))
    gains.sort()
    return Effect(
        claim="verified drafts halve decode iterations: a gain that grows with decode's share, with no staleness",
        parameter="decode's share of a serial step",
        metric="simulated speedup over the same schedule without drafts",
        values={f"{share:.2f}": gain for share, gain in gains},
        holds=1 < gains[0][1] < gains[1][1] < gains[2][1] < 2 and preset.timetable.synchronous,
    )


def asynchrony_by_tail(scenario: Scenario, preset: Preset) -> Effect:
    """ROLL Flash: an asynchronous ratio gains over a synchronous step, where long responses hold that up."""
    values: dict[str, float] = {}
    for spread in (0.0, 0.4, 0.8):
        case = replace(scenario, workload=scenario.workload.with_(response_spread=spread))
        values[str(spread)] = _time(case, Serial()) / _best_split(case, preset.schedule)
    gains = list(values.values())
    return Effect(
        claim="asynchronous training beats a synchronous step where responses have a long tail, the more the longer it is",
        parameter="spread of response lengths",
        metric="simulated speedup over synchronous colocation, at the best of three splits of the devices",
        values=values,
        holds=gains[-1] > 1 and gains == sorted(gains),
    )


def asynchrony_by_size(scenario: Scenario, preset: Preset) -> Effect:
    """LlamaRL: pools with parallelism of their own gain over one layout for both, for models that outgrow a node.

    Training spreads a copy over as many devices as its state (18 bytes a weight) demands; a synchronous step that
    decodes in that layout pays for it with every token, while an engine of its own needs a few devices. What training
    itself takes is that of the usual placement on both sides. 32 B would need 16 ways, into which its heads do not divide.
    """
    values: dict[str, float] = {}
    for name in ("Qwen2.5-VL-3B", "Qwen2.5-VL-7B", "Qwen2.5-VL-72B"):
        # Text prompts and long answers, as in its paper; twice the nodes, because 72 B need 32 devices for a copy.
        work = scenario.workload.with_(prompt_tokens=256, response_tokens=1000)
        nodes = replace(scenario.cluster, num_nodes=8)
        case = replace(scenario, geometry=GEOMETRIES[name], cluster=nodes, workload=work)
        train, engine = (_fits(case, width) for width in (18.0, 4.0))
        together = _time(case, Serial(), rollout_tp=train)
        values[name] = together / min(
            _time(case, BoundedStaleness(1), share, rollout_tp=tp)
            for tp in (engine, 2 * engine)
            for share in (0.25, 0.5)
        )
    gains = list(values.values())
    return Effect(
        claim="asynchronous pools with layouts of their own beat a synchronous step in one layout for a large model, and gain "
        "more there than for small ones",
        parameter="model",
        metric="simulated speedup over synchronous colocation",
        values=values,
        holds=gains[-1] > max(1.0, *gains[:-1]),
    )


def _fits(case: Scenario, bytes_per_weight: float) -> int:
    """The least power of two of devices that hold a copy, a fifth of the memory left free."""
    tp = 1
    while case.geometry.weights * bytes_per_weight / tp > 0.8 * case.cluster.device.memory_bytes:
        tp *= 2
    return tp


def streaming_queue(scenario: Scenario, preset: Preset) -> Effect:
    """AsyncFlow: handing over group by group beats handing over a batch; deferring the update beats both."""
    values = {
        "batch": _time(scenario, Disaggregated()),
        "streamed": _time(scenario, Streaming()),
        "streamed, update deferred": _time(scenario, Streaming(1)),
    }
    batch, streamed, deferred = values.values()
    return Effect(
        claim="a streaming queue beats a batch hand-over, and a deferred update beats both",
        parameter="hand-over",
        metric="simulated step seconds",
        values=values,
        holds=batch > streamed > deferred,
    )


def micro_batches(scenario: Scenario, preset: Preset) -> Effect:
    """FlexMARL: the micro-batch pipeline between pools gains more, the more micro-batches a step has."""
    values: dict[str, float] = {}
    for prompts in (4, 16, 64):
        case = replace(scenario, workload=scenario.workload.with_(prompts=prompts))
        values[str(prompts)] = _time(case, Disaggregated()) / _time(case, Streaming())
    gains = list(values.values())
    return Effect(
        claim="pipelining micro-batches between the pools hides training behind rollout, better with more of them",
        parameter="groups in a step",
        metric="simulated speedup over disaggregation by batch",
        values=values,
        holds=min(gains) >= 1 and gains[-1] > gains[0],
    )


def swapping(scenario: Scenario, preset: Preset) -> Effect:
    """MindSpeed RL: gathering rollout shards and swapping the training state out frees memory at little time."""
    placed = scenario.usual_placement()
    kept = scenario.simulate(Serial(), placed, NAIVE, num_steps=2)
    swapped = scenario.simulate(Serial(), placed, preset.residency, num_steps=2)
    gib = {"kept": kept.peak_bytes["all"] / 2**30, "swapped": swapped.peak_bytes["all"] / 2**30}
    return Effect(
        claim="swapping what the other phase does not need lowers the peak by far more than it lengthens the step",
        parameter="training state during rollout",
        metric="simulated peak GiB of a device",
        values=gib,
        holds=1 - gib["swapped"] / gib["kept"] > swapped.step_s() / kept.step_s() - 1 and gib["swapped"] < gib["kept"],
    )


def serving_beside(scenario: Scenario, preset: Preset) -> Effect:
    """LeMix: serving beside training beats separate devices while interference is small, and loses under slicing."""
    values = {f"slowdown {factor}": throughput_ratio(scenario, factor) for factor in (1.1, 1.5, 2.2)}
    gains = list(values.values())
    return Effect(
        claim="co-running a serving load with training beats giving each devices of its own, unless they slow each other too much",
        parameter="mutual slowdown",
        metric="simulated throughput over separate devices",
        values=values,
        holds=gains[0] > 1 > gains[2] and gains[0] > gains[1],
    )


def fragments(scenario: Scenario, preset: Preset) -> Effect:
    """MSRL: the same fragments, placed apart or together; which is better depends on the link between them."""
    values: dict[str, float] = {}
    for name in ("InfiniBand 400", "Ethernet 25", "Wide area 1"):
        apart = {"sites": 1, "between_sites": LINKS[name]}
        whole, hardly = (_time(scenario, BoundedStaleness(1), **apart, delta=delta) for delta in (1.0, 1e-3))
        values[name] = whole / hardly
    gains = list(values.values())
    return Effect(
        claim="the best placement of the same fragments depends on the link: apart costs more the slower it is",
        parameter="link between the fragments that sample and those that train",
        metric="simulated step time over that without transfers",
        values=values,
        holds=gains[0] < 1.05 and gains[0] <= gains[1] < gains[2],
    )
