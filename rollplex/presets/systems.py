"""The systems: each a short mapping from its mechanism to our timetable, pools, placement and staleness.

Mechanisms and headlines are as their papers' own pages state them, in our words. A system that has parts which are no
phase schedule (queues, fault tolerance, algorithms) is here only as far as its schedule goes.
"""

from __future__ import annotations

from rollplex.costs.residency import Residency
from rollplex.hardware import LINKS
from rollplex.presets import effects
from rollplex.presets.preset import Preset
from rollplex.schedules import Serial
from rollplex.schedules_pools import BoundedStaleness, Disaggregated, Multiplexed, Selecting, Streaming
from rollplex.selection import Replicate

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="RollMux",
            arxiv="2512.11306",
            headline="1.84x cost efficiency over disaggregation, 1.38x over colocation (328 H20 + 328 H800)",
            mapping="phases of several jobs take turns on a rollout and a training pool, state warm in host memory: "
            "Multiplexed with two jobs, and a switch that loads weights from host memory",
            left_out="placement of many jobs into groups, and its stochastic planning",
            schedule=Multiplexed(),
            num_jobs=2,
            effect=effects.multiplexing,
        ),
        Preset(
            name="ECHO-2",
            arxiv="2602.02192",
            headline="lower cost at similar reward (4B and 8B GRPO over wide-area workers)",
            mapping="a central learner and rollout sites behind a wide-area link, staleness set by the user, broadcast "
            "pipelined along the sites: BoundedStaleness(2), the transfer on a lane of its own",
            left_out="prices of spot workers, and workers that come and go",
            schedule=BoundedStaleness(2),
            placement={"sites": 2, "between_sites": LINKS["InfiniBand 400 a node"]},
            effect=effects.hidden_broadcast,
        ),
        Preset(
            name="Echo",
            arxiv="2508.05387",
            headline="convergence like a colocated system's",
            mapping="an inference and a training swarm with asynchronous push-pull: OneStepOff; its sequential pull is "
            "Disaggregated",
            left_out="heterogeneous swarms",
            schedule=BoundedStaleness(1),
            effect=effects.pull_or_push,
        ),
        Preset(
            name="Relax",
            arxiv="2604.11554",
            headline="1.76x (Qwen3-4B) and 2.00x (Qwen3-Omni-30B) over its own colocated mode",
            mapping="every role a service on a transfer queue, one max_staleness knob: Streaming(1)",
            left_out="services, recovery, roles beyond actor and reference",
            schedule=Streaming(1),
            effect=effects.staleness_saturates,
        ),
        Preset(
            name="BubbleSpec",
            arxiv="2605.08862",
            headline="half the decode steps, rollout up to 1.8x faster, exact and synchronous",
            mapping="idle ranks draft next-step responses that are verified speculatively: Serial with two tokens "
            "accepted for each iteration",
            left_out="that drafts come from the bubble itself: the acceptance is given, not derived from idle time",
            schedule=Serial(),
            placement={"accepted": 2.0},
            effect=effects.drafts,
        ),
        Preset(
            name="ROLL Flash",
            arxiv="2510.11345",
            headline="up to 2.24x (RLVR) and 2.72x (agentic)",
            mapping="an asynchronous ratio and prompts replicated over engines: BoundedStaleness(2) over Replicate",
            left_out="queue scheduling of environments",
            schedule=Selecting(BoundedStaleness(2), Replicate()),
            effect=effects.asynchrony_by_tail,
        ),
        Preset(
            name="LlamaRL",
            arxiv="2505.24034",
            headline="up to 10.7x over a DeepSpeed-Chat-like baseline at 405B",
            mapping="one controller, asynchronous off-policy pools with their own parallelism, weights sent device to "
            "device: OneStepOff",
            left_out="its off-policy correction; FP8 engines",
            schedule=BoundedStaleness(1),
            effect=effects.asynchrony_by_size,
        ),
        Preset(
            name="AsyncFlow",
            arxiv="2507.01663",
            headline="1.59x throughput on average",
            mapping="a streaming queue between producers and consumers, the parameter update deferred: Streaming(1)",
            left_out="load balancing of the queue",
            schedule=Streaming(1),
            effect=effects.streaming_queue,
        ),
        Preset(
            name="FlexMARL",
            arxiv="2602.09578",
            headline="up to 7.3x, and 5.6x utilisation",
            mapping="micro-batches flow between disaggregated pools while the step is still synchronous: Streaming",
            left_out="many agents with models of their own",
            schedule=Streaming(),
            effect=effects.micro_batches,
        ),
        Preset(
            name="MindSpeed RL",
            arxiv="2507.19017",
            headline="1.42-3.97x on 384 NPUs",
            mapping="rollout shards gathered for each rollout, training state swapped to the host meanwhile: Serial with "
            "state in host memory and weights of both engines apart",
            left_out="its distributed sample queue",
            schedule=Serial(),
            residency=Residency(name="gather and swap", share_weights=False),
            effect=effects.swapping,
        ),
        Preset(
            name="LeMix",
            arxiv="2507.21276",
            headline="up to 3.53x throughput",
            mapping="a serving load co-runs with training on the same devices: two jobs on one pool under two-sided "
            "interference (as a step of RL: Serial)",
            left_out="its prediction of interference, and request queues: no phase schedule of RL",
            schedule=Serial(),
            effect=effects.serving_beside,
        ),
        Preset(
            name="MSRL",
            arxiv="2210.00882",
            headline="classic RL on up to 64 GPUs",
            mapping="an algorithm cut into dataflow fragments that are placed on devices: the same phases as "
            "Disaggregated (apart) or Serial (together)",
            left_out="everything but placement; it is no LLM system",
            schedule=Disaggregated(),
            effect=effects.fragments,
        ),
    )
}
"""Name -> system."""
