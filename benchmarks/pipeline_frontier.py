"""The pipeline planner beside other solvers, on the same problems, on this machine, in this run.

    python benchmarks/pipeline_frontier.py [FOLDER OF PROFILES] [--quick] [--lowtime-seconds 300]
    python benchmarks/pipeline_frontier.py FOLDER --switch-seconds 0.005,0.02 --dwell 0,0.5

CPU seconds, after compilation, of: the whole frontier; 200 rounded plans; HiGHS cold (one point) and warm (100 points,
dual simplex); lowtime, where it is installed, stopped after a budget, which then is a bound. The growth over
microbatches. Single plans of 32 to 128 stages, free and with a price of switches. The gap of plans with a price and a
dwell to their bounds, on the random problems of `plan_switching.py`. With a folder that holds
gpt3-175b+a100_sxm_bf16.csv and gpt3-175b+a40_bf16.csv also the savings at no slowdown, the bound, EnvPipe, and what a
switch price of 5 ms loses. Exits with 1 if a limit below is not kept.

With `--switch-seconds`, only plans with these prices of switches: for all profiles of the folder, microbatches and
slowdowns, what the plan, its bound and the baselines save, in percent of the energy at the highest clocks. A plan that
takes more energy than a baseline is named, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.plan_switching import random_problems, savings_of  # noqa: E402
from zeus_core.pipeline import Frontier, PipelineProfile, baselines, make_plan, schedules  # noqa: E402
from zeus_core.pipeline.planner.clock_options import MeasuredOption  # noqa: E402
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile  # noqa: E402
from zeus_core.pipeline.testing import simulate_pipeline  # noqa: E402

SIZES = [(4, 8), (8, 16), (8, 64), (8, 128), (16, 128)]
GROWTH = [32, 64, 128, 256, 512]
MICROBATCHES = (12, 24, 48, 96)
SLOWDOWNS = (1.0, 1.02, 1.05, 1.1, 1.2)
POINTS = 100
# Stages, microbatches, seconds of a switch, dwell and precision of one plan, and the CPU seconds that it may take.
BIG_PLANS = (
    (32, 64, 0.005, 0.1, 0.0, 10.0),
    (32, 64, 0.0, 0.0, 0.0, 10.0),
    (64, 128, 0.0, 0.0, 0.005, 5.0),
    (128, 128, 0.0, 0.0, 0.005, 5.0),
)
DWELL_PROBLEMS, LARGEST_MEAN_DWELL_GAP = 76, 1.05
LEAST_HIGHS_RATIO, LEAST_LOWTIME_RATIO, LARGEST_EXPONENT = 10.0, 500.0, 1.2
PROFILES = {
    "gpt3-175b+a100_sxm_bf16.csv": (83.6, (15.9, 14.7, 13.9, 13.5), (14.22, 13.54, 13.17, 12.98)),
    "gpt3-175b+a40_bf16.csv": (70.4, (12.0, 10.3, 9.3, 8.8), (11.13, 9.88, 9.19, 8.82)),
}
LARGEST_MEAN_GAP = {"gpt3-175b+a100_sxm_bf16.csv": 0.25}


def synthetic(stages: int, clocks: int = 40) -> PipelineProfile:
    """Measured-looking profiles: 40 clocks, stages that differ by up to 15 %, times that scatter by 0.3 %."""
    random = np.random.default_rng(0)
    profiles = []
    for stage in range(stages):
        for kind, base in (("forward", 0.05), ("backward", 0.1)):
            seconds, bound, watts = (
                base * random.uniform(0.85, 1.15),
                random.uniform(0.6, 0.9),
                random.uniform(300, 380),
            )
            options = []
            for place in range(clocks):
                clock = 1410 - 15 * place
                x = clock / 1410
                duration = seconds * (bound / x + 1 - bound) * (1 + 0.003 * random.standard_normal())
                options.append(MeasuredOption(clock, duration, (80 + (watts - 80) * (0.3 * x + 0.7 * x**3)) * duration))
            profiles.append(InstructionProfile(stage, kind, tuple(options)))
    return PipelineProfile(profiles, 80.0)


def cpu_seconds(action: Callable[[], Any], runs: int = 1) -> tuple[float, Any]:
    """Return the lowest CPU time of some runs, and the result of the last one."""
    best = math.inf
    gc.collect()
    for _ in range(runs):
        begin = time.process_time()
        result = action()
        best = min(best, time.process_time() - begin)
    return best, result


class Highs:
    """The linear program of a frontier point: times of events, and the parts of each segment of the hulls."""

    def __init__(self, frontier: Frontier) -> None:
        import highspy
        from scipy.sparse import coo_matrix

        network = frontier._network
        arrays, quantum = network.arrays, network.time_quantum_seconds
        events, arcs = len(arrays.first_end) - 1, len(arrays.tail)
        counts = np.diff(arrays.first_corner) - 1
        is_segment = np.ones(len(arrays.corner_time), bool)
        is_segment[arrays.first_corner[1:] - 1] = False
        segments = np.flatnonzero(is_segment)
        lengths = (arrays.corner_time[segments + 1] - arrays.corner_time[segments]) * quantum
        columns, infinity = events + len(segments), highspy.kHighsInf
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = columns, arcs
        model.col_cost_ = np.concatenate(
            [np.zeros(events), -arrays.corner_slope[segments] * network.slope_quantum_watts]
        )
        model.col_lower_ = np.zeros(columns)
        model.col_upper_ = np.concatenate([[0.0], np.full(events - 1, infinity), lengths])
        model.row_lower_ = arrays.corner_time[arrays.first_corner[:-1]] * quantum
        model.row_upper_ = np.full(arcs, infinity)
        arc, segment = np.arange(arcs), np.arange(len(segments))
        rows = np.concatenate([arc, arc, np.repeat(arc, counts)])
        places = np.concatenate([arrays.head, arrays.tail, events + segment])
        values = np.concatenate([np.ones(arcs), -np.ones(arcs), -np.ones(len(segments))])
        matrix = coo_matrix((values, (rows, places)), shape=(arcs, columns)).tocsc()
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_, model.a_matrix_.index_ = matrix.indptr, matrix.indices
        model.a_matrix_.value_ = matrix.data
        self.solver = highspy.Highs()
        for name, value in (("output_flag", False), ("threads", 1), ("solver", "simplex"), ("simplex_strategy", 1)):
            self.solver.setOptionValue(name, value)
        self.solver.passModel(model)

    def solve(self, seconds: float) -> float:
        self.solver.changeColBounds(1, 0.0, seconds)
        self.solver.run()
        return self.solver.getInfo().objective_function_value


def compare_solvers(name: str, profile: PipelineProfile, microbatches: int, must_hold: bool, lowtime: float) -> bool:
    schedule = schedules.one_f_one_b(profile.stages, microbatches)
    own_seconds, frontier = cpu_seconds(lambda: Frontier.from_profile(profile, schedule), runs=3)
    times = np.linspace(frontier.least_energy_seconds, frontier.shortest_seconds * (1 + 1e-9), 200)
    quick_seconds, _ = cpu_seconds(lambda: [make_plan(frontier, time_seconds=time, effort=0) for time in times])
    polished_seconds, _ = cpu_seconds(lambda: make_plan(frontier, time_seconds=times[100]))
    line = (
        f"{name:24} {len(frontier.problem.graph.instructions):6d} {len(frontier.times_seconds):6d} {own_seconds:9.4f}"
        f" {quick_seconds:8.3f} {polished_seconds:8.3f}"
    )
    ratio, lowtime_text, lowtime_ratio = math.inf, "not installed", math.inf
    try:
        highs = Highs(frontier)
    except ImportError:
        line += "  HiGHS is not installed"
    else:
        cold_seconds, _ = cpu_seconds(lambda: highs.solve(float(times[0])))
        points = np.linspace(times[0], times[-1], POINTS).tolist()
        costs = []
        warm_seconds, _ = cpu_seconds(lambda: costs.extend(highs.solve(point) for point in points))
        exact = [float(frontier.energy_joules(seconds, until_seconds=seconds)) for seconds in points]
        waiting = frontier.problem.blocking_power_watts * np.array(points)
        difference = np.ptp(np.array(costs) + waiting - exact) / exact[0]
        ratio = warm_seconds / own_seconds
        line += f" {cold_seconds:8.3f} {warm_seconds:8.3f} {ratio:7.1f}x {difference:8.0e}"
    if lowtime > 0:
        lowtime_text, lowtime_ratio = compare_lowtime(frontier, own_seconds, lowtime)
    print(f"{line}  lowtime: {lowtime_text}", flush=True)
    is_large = frontier.problem.schedule.stages * microbatches
    holds = (ratio >= LEAST_HIGHS_RATIO or is_large < 8 * 64) and (
        lowtime_ratio >= LEAST_LOWTIME_RATIO or is_large < 128
    )
    return holds or not must_hold


def compare_lowtime(frontier: Frontier, own_seconds: float, budget: float) -> tuple[str, float]:
    """lowtime in a process of its own, stopped after its budget; a run that did not finish is a bound only."""
    try:
        import lowtime  # noqa: F401
    except ImportError:
        return "not installed", math.inf
    receiving, sending = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=run_lowtime, args=(frontier, budget, sending))
    process.start()
    sending.close()
    try:
        seconds = receiving.recv() if receiving.poll(4 * budget + 60) else None
    except EOFError:
        seconds = None
    process.kill() if seconds is None else None
    process.join()
    if seconds is None:
        return f"> {budget:.0f} s, > {budget / own_seconds:.0f}x (stopped)", math.inf
    return f"{seconds:.1f} s, {seconds / own_seconds:.0f}x", seconds / own_seconds


def run_lowtime(frontier: Frontier, budget: float, sending: Any) -> None:
    """Run lowtime as Perseus uses it: an exponential fit for each kind, time in units of 1 ms."""
    import logging

    import networkx as nx
    from lowtime.cost_model import ExponentialModel
    from lowtime.operation import CandidateExecutionOptions, ExecutionOption, Operation, OperationSpec
    from lowtime.solver import PhillipsDessouky

    logging.disable(logging.CRITICAL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + budget) + 1,) * 2)
    begin = time.process_time()
    problem = frontier.problem
    specs = []
    for choices in problem.pareto_options:
        options = [
            ExecutionOption(choice.time_seconds, 0.001, choice.cost_joules, choice.clock_mhz) for choice in choices
        ]
        candidates = CandidateExecutionOptions(options)
        specs.append(OperationSpec(candidates, ExponentialModel(candidates)))
    dag = nx.DiGraph()
    operations = [Operation(specs[kind]) for kind in problem.kind_of.tolist()]
    graph = problem.graph
    for number, operation in enumerate(operations):
        dag.add_node(number, op=operation)
    for number in range(len(operations)):
        for arc in range(graph.first_arc[number], graph.first_arc[number + 1]):
            dag.add_edge(int(graph.arc_from[arc]), number)
    add_ends(dag)
    for _ in PhillipsDessouky(dag).run():
        pass
    sending.send(time.process_time() - begin)


def add_ends(dag: Any) -> None:
    from lowtime.operation import DummyOperation

    first = [node for node in dag if dag.in_degree(node) == 0]
    last = [node for node in dag if dag.out_degree(node) == 0]
    source, sink = len(dag), len(dag) + 1
    dag.add_node(source, op=DummyOperation())
    dag.add_node(sink, op=DummyOperation())
    dag.graph["source_node"], dag.graph["sink_node"] = source, sink
    dag.add_edges_from((source, node) for node in first)
    dag.add_edges_from((node, sink) for node in last)


def measure_growth() -> bool:
    profile = synthetic(8)
    seconds = []
    for microbatches in GROWTH:
        schedule = schedules.one_f_one_b(8, microbatches)
        seconds.append(cpu_seconds(lambda schedule=schedule: Frontier.from_profile(profile, schedule), runs=2)[0])
    exponent = float(np.polyfit(np.log(GROWTH), np.log(seconds), 1)[0])
    listed = ", ".join(f"{size}: {found:.3f} s" for size, found in zip(GROWTH, seconds, strict=True))
    print(f"growth over microbatches, 8 stages: {listed}; exponent {exponent:.2f} (limit {LARGEST_EXPONENT})")
    return exponent <= LARGEST_EXPONENT


def measure_big_plan(
    stages: int, microbatches: int, switch: float, dwell: float, precision: float, limit: float
) -> bool:
    """One wanted plan of a big pipeline, from a frontier that need not be exact."""
    profile, schedule = synthetic(stages), schedules.one_f_one_b(stages, microbatches)
    walk_seconds, frontier = cpu_seconds(lambda: Frontier.from_profile(profile, schedule, precision=precision))
    price = {"switch_seconds": switch, "dwell_seconds": dwell}
    seconds, plan = cpu_seconds(lambda: make_plan(frontier, slowdown_factor=1.05, **price))
    gap = 100 * (plan.energy_joules - plan.bound_joules) / frontier.highest_clock_point[1]
    print(
        f"{stages} stages, {microbatches} microbatches, {switch:g} s a switch, dwell {dwell:g} s, precision"
        f" {precision:g}: frontier {walk_seconds:.2f} s, plan for +5 % {seconds:.2f} s, {gap:.2f} points from its bound"
        f" (limit {limit:g} s together)",
        flush=True,
    )
    return walk_seconds + seconds <= limit


def measure_dwell() -> bool:
    """Plans with a price of switches, some with a dwell: how far they are from their bounds."""
    gaps: dict[float, list[float]] = {}
    is_dearer = False
    for problem in random_problems(DWELL_PROBLEMS, seed=0):
        found = savings_of(problem)
        gaps.setdefault(problem.dwell_seconds, []).append(found["bound"] - found["plan"])
        is_dearer = is_dearer or found["plan"] < max(found["one clock"], found["one clock per stage"]) - 1e-7
    mean = float(np.mean([gap for of_dwell in gaps.values() for gap in of_dwell]))
    by_dwell = ", ".join(f"{np.mean(of_dwell):.2f} at {dwell:g} s" for dwell, of_dwell in sorted(gaps.items()))
    dearer = "; SOME ARE DEARER THAN A BASELINE" if is_dearer else ""
    print(
        f"with dwell: {DWELL_PROBLEMS} plans are {mean:.2f} points from their bounds in the mean (limit"
        f" {LARGEST_MEAN_DWELL_GAP}), {by_dwell}{dearer}",
        flush=True,
    )
    return mean <= LARGEST_MEAN_DWELL_GAP and not is_dearer


def measure_savings(folder: Path) -> bool:
    holds = True
    print(
        f"\n{'savings at no slowdown, %':28} {'M':>4} {'plan':>7} {'needed':>7} {'bound':>7} {'EnvPipe':>8}"
        f" {'published':>9} {'stages':>7} {'5 ms a switch':>14} {'lost':>6} {'switches':>9} {'replay':>8}"
    )
    for name, (watts, needed, published) in PROFILES.items():
        profile, gaps = PipelineProfile.from_csv(folder / name, watts), []
        for microbatches, least, theirs in zip(MICROBATCHES, needed, published, strict=True):
            frontier = Frontier.from_profile(profile, schedules.one_f_one_b(profile.stages, microbatches))
            seconds, joules = frontier.highest_clock_point
            plan = make_plan(frontier, slowdown_factor=1.0)
            switching = make_plan(frontier, slowdown_factor=1.0, switch_seconds=0.005)
            simulated = [simulate_pipeline(profile, compared) for compared in (plan, switching)]
            envpipe = baselines.envpipe_plan(frontier.problem)
            stages = baselines.stage_clocks_plan(frontier.problem, seconds)
            found, bound, env, per_stage, priced = (
                100 * (1 - energy / joules)
                for energy in (
                    plan.energy_joules,
                    float(frontier.energy_joules(seconds)),
                    envpipe.energy_joules,
                    stages.energy_joules,
                    switching.energy_joules,
                )
            )
            replay = max(
                abs(simulation.energy_joules / p.energy_joules - 1)
                for simulation, p in zip(simulated, (plan, switching), strict=True)
            )
            in_time = max(simulation.time_seconds for simulation in simulated) <= seconds
            gaps.append(bound - found)
            print(
                f"{name:28} {microbatches:4d} {found:7.3f} {least:7.1f} {bound:7.3f} {env:8.2f} {theirs:9.2f}"
                f" {per_stage:7.2f} {priced:14.3f} {found - priced:6.2f} {plan.switches:4d}/{switching.switches:4d}"
                f" {replay:8.0e}{'' if in_time else '  TOO LATE'}",
                flush=True,
            )
            holds = holds and found >= least and abs(env - theirs) <= 1 and in_time and replay <= 1e-9
        mean = float(np.mean(gaps))
        limit = LARGEST_MEAN_GAP.get(name, math.inf)
        print(f"{name}: mean gap to the bound {mean:.3f} points (limit {limit})")
        holds = holds and mean <= limit
    return holds


def measure_switching(folder: Path, switch_seconds: list[float], dwells: list[float]) -> bool:
    gaps: list[float] = []
    faults: list[str] = []
    warm = Frontier.from_profile(synthetic(2), schedules.one_f_one_b(2, 2))
    make_plan(warm, slowdown_factor=1.05, switch_seconds=0.005, dwell_seconds=0.1, effort=0.001)  # compiles
    print(
        f"{'saved, %':20} {'M':>3} {'slower':>6} {'switch':>7} {'dwell':>5} {'plan':>6} {'bound':>6} {'gap':>5}"
        f" {'one clock':>9} {'stages':>6} {'switches':>8} {'CPU s':>5}"
    )
    for path in sorted(folder.glob("*.csv")):
        watts = PROFILES[path.name][0] if path.name in PROFILES else 75.0
        profile = PipelineProfile.from_csv(path, watts)
        for microbatches in MICROBATCHES:
            frontier = Frontier.from_profile(profile, schedules.one_f_one_b(profile.stages, microbatches))
            for slowdown, seconds, dwell in product(SLOWDOWNS, switch_seconds, dwells):
                name = f"{path.stem[:20]:20} {microbatches:3d} {slowdown:6.2f} {seconds:7.3f} {dwell:5.1f}"
                gaps.append(compare_switching(name, frontier, slowdown, seconds, dwell, faults))
    print(f"gap to the own bound: mean {np.mean(gaps):.2f}, worst {max(gaps):.2f} points, of {len(gaps)} plans")
    print("\n".join([*faults, f"{len(faults)} plans that take more energy than a baseline"]))
    return not faults


def compare_switching(
    name: str, frontier: Frontier, slowdown: float, seconds: float, dwell: float, faults: list[str]
) -> float:
    """Print one line; return the gap to the bound."""
    joules, limit = frontier.highest_clock_point[1], slowdown * frontier.highest_clock_point[0]
    cpu, plan = cpu_seconds(
        lambda: make_plan(frontier, slowdown_factor=slowdown, switch_seconds=seconds, dwell_seconds=dwell)
    )
    simple = [
        baselines.global_clock_plan(frontier.problem, limit).energy_joules,
        baselines.stage_clocks_plan(frontier.problem, limit).energy_joules,
    ]
    saved, bound, one_clock, stages = (
        100 * (1 - energy / joules) for energy in (plan.energy_joules, plan.bound_joules or 0.0, *simple)
    )
    if saved < max(0.0, one_clock, stages) - 1e-9:
        faults.append(f"DEARER THAN A BASELINE: {name}")
    print(
        f"{name} {saved:6.2f} {bound:6.2f} {bound - saved:5.2f} {one_clock:9.2f} {stages:6.2f} {plan.switches:8d}"
        f" {cpu:5.1f}",
        flush=True,
    )
    return bound - saved


def numbers(text: str) -> list[float]:
    return [float(entry) for entry in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="published profiles")
    parser.add_argument("--quick", action="store_true", help="leave out the largest")
    parser.add_argument(
        "--lowtime-seconds", type=float, default=60.0, help="CPU budget of each run of lowtime; 0: none"
    )
    parser.add_argument("--switch-seconds", type=numbers, help="prices of switches, such as 0.005,0.02")
    parser.add_argument("--dwell", type=numbers, default=[0.0], help="shortest seconds between switches: 0,0.5")
    arguments = parser.parse_args()
    if arguments.switch_seconds:
        if arguments.folder is None:
            parser.error("--switch-seconds needs a folder of profiles")
        return int(not measure_switching(arguments.folder, arguments.switch_seconds, arguments.dwell))
    make_plan(Frontier.from_profile(synthetic(2), schedules.one_f_one_b(2, 2)), time_seconds=1.0)  # compiles
    print(
        f"{'CPU seconds':24} {'instr.':>6} {'breaks':>6} {'frontier':>9} {'200 quick':>9} {'1 plan':>7}"
        f" {'HiGHS':>8} {'100 warm':>8} {'ratio':>8} {'differ':>8}"
    )
    holds = []
    for stages, microbatches in SIZES[:3] if arguments.quick else SIZES:
        name = f"synthetic ({stages},{microbatches})"
        holds.append(compare_solvers(name, synthetic(stages), microbatches, True, arguments.lowtime_seconds))
    folder = arguments.folder
    has_profiles = folder is not None and all((folder / name).exists() for name in PROFILES)
    if has_profiles:
        for name, (watts, _, _) in PROFILES.items():
            for microbatches in MICROBATCHES:
                profile = PipelineProfile.from_csv(folder / name, watts)
                short = f"{name.partition('_')[0]} M={microbatches}"
                holds.append(compare_solvers(short, profile, microbatches, True, arguments.lowtime_seconds))
    holds.append(measure_growth())
    holds.append(measure_dwell())  # compiles what plans with a price need
    holds += [measure_big_plan(*big) for big in BIG_PLANS]
    if has_profiles:
        holds.append(measure_savings(folder))
    else:
        print(f"\nSKIPPED: the savings on published profiles; name a folder that holds {', '.join(PROFILES)}")
    print("all limits are kept" if all(holds) else "SOME LIMITS ARE NOT KEPT")
    return int(not all(holds))


if __name__ == "__main__":
    sys.exit(main())
