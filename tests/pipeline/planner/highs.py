"""The oracle: the same problem given to HiGHS, straight from profile and schedule.

Variables are the start of each instruction and the share of each of its options; with whole shares it is the true
problem of real clocks, without the linear program below it.
"""

from itertools import pairwise

import highspy
import numpy as np
from scipy.sparse import coo_matrix

from zeus_core.pipeline.planner.pipeline_schedule import TRANSFER_KINDS


class Oracle:
    def __init__(self, profile, schedule, whole=False):  # noqa: C901 - one matrix, row by row
        self.instructions = list(schedule.instructions)
        number = {instruction: place for place, instruction in enumerate(self.instructions)}
        n = len(self.instructions)
        self.shares, times, costs = [], [], []
        for instruction in self.instructions:
            if instruction.kind in TRANSFER_KINDS:
                of = [(0.0, 0.0)]
            else:
                watts, gpus = profile.blocking_power_watts[instruction.stage], profile.gpus[instruction.stage]
                of = [
                    (option.time_seconds, gpus * (option.energy_joules - watts * option.time_seconds))
                    for option in profile.get(instruction.stage, instruction.kind).options
                ]
            first = n + len(times)
            self.shares.append(range(first, first + len(of)))
            times += [time for time, _ in of]
            costs += [cost for _, cost in of]
        rank_of = schedule.rank_of_stage
        first_stage = [rank_of.index(rank) for rank in range(len(schedule.ranks))]
        self.watts = sum(profile.blocking_power_watts[stage] * profile.gpus[stage] for stage in first_stage)
        self.transfer_joules = 0.0
        rows, columns, values, lower, upper = [], [], [], [], []

        def add_row(entries, least, most):
            for column, value in entries:
                rows.append(len(lower))
                columns.append(column)
                values.append(value)
            lower.append(least)
            upper.append(most)

        def lasting(instruction, sign):
            return [(share, sign * times[share - n]) for share in self.shares[instruction]]

        infinity = highspy.kHighsInf
        self.end = n + len(times)  # the iteration time
        for instruction, place in number.items():
            add_row([(share, 1.0) for share in self.shares[place]], 1.0, 1.0)
            add_row([(self.end, 1.0), (place, -1.0), *lasting(place, -1.0)], 0.0, infinity)
            for needed in schedule.needs(instruction):
                delay = 0.0
                if rank_of[needed.stage] != rank_of[instruction.stage]:
                    link = profile.find(needed.stage, "communication")
                    if link:
                        delay = link.options[0].time_seconds
                        self.transfer_joules += profile.gpus[needed.stage] * link.options[0].energy_joules
                add_row([(place, 1.0), (number[needed], -1.0), *lasting(number[needed], -1.0)], delay, infinity)
        for order in schedule.ranks:
            for instruction, following in pairwise(order):
                add_row(
                    [(number[following], 1.0), (number[instruction], -1.0), *lasting(number[instruction], -1.0)],
                    0.0,
                    infinity,
                )
        count = self.end + 1
        matrix = coo_matrix((values, (rows, columns)), shape=(len(lower), count)).tocsc()
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = count, len(lower)
        model.col_cost_ = np.concatenate([np.zeros(n), costs, [0.0]])
        model.col_lower_ = np.zeros(count)
        model.col_upper_ = np.full(count, infinity)
        model.row_lower_, model.row_upper_ = np.array(lower), np.array(upper)
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_, model.a_matrix_.index_ = matrix.indptr, matrix.indices
        model.a_matrix_.value_ = matrix.data
        if whole:
            kinds = highspy.HighsVarType
            model.integrality_ = [kinds.kContinuous] * n + [kinds.kInteger] * len(times) + [kinds.kContinuous]
        self.solver = highspy.Highs()
        self.solver.setOptionValue("output_flag", False)
        self.solver.setOptionValue("threads", 1)
        self.solver.setOptionValue("mip_rel_gap", 1e-4)
        for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            self.solver.setOptionValue(name, 1e-10)
        self.solver.passModel(model)

    def limit_seconds(self, seconds):
        self.solver.setOptionValue("time_limit", float(seconds))

    def shortest_seconds(self):
        """The least iteration time."""
        costs = [self.solver.getLp().col_cost_[column] for column in range(self.end)]
        for column in range(self.end):
            self.solver.changeColCost(column, 0.0)
        self.solver.changeColCost(self.end, 1.0)
        self.solver.run()
        found = self.solver.getInfo().objective_function_value
        for column, cost in enumerate(costs):
            self.solver.changeColCost(column, cost)
        self.solver.changeColCost(self.end, 0.0)
        return found

    def energy_joules(self, time_seconds, until_seconds=None):
        """The least energy, and a bound it is not below (the same without whole shares)."""
        self.solver.changeColBounds(self.end, 0.0, float(time_seconds))
        self.solver.run()
        info = self.solver.getInfo()
        if self.solver.getModelStatus() not in (
            highspy.HighsModelStatus.kOptimal,
            highspy.HighsModelStatus.kTimeLimit,
        ):
            raise RuntimeError(f"HiGHS: {self.solver.getModelStatus()}")
        until = time_seconds if until_seconds is None else until_seconds
        return info.objective_function_value + self.transfer_joules + self.watts * until
