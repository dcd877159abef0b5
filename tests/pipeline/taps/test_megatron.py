"""The tap of Megatron-core, on its own schedules: two processes over gloo, without CUDA."""

import logging
from types import SimpleNamespace

import pytest

from tests.pipeline.taps.test_pipelining import Recorder
from tests.support import megatron_on_cpu
from tests.support.ranks import run_ranks
from tests.support.virtual_time import A100, Run, SharedTimes, computing_optimizer, true_profile
from zeus_core.events import Activity
from zeus_core.pipeline.optimizer import PipelineFrequencySettings
from zeus_core.pipeline.planner.pipeline_schedule import Instruction
from zeus_core.pipeline.schedules import from_instruction_lists, one_f_one_b

MICROBATCHES = megatron_on_cpu.MICROBATCHES
CHUNKS = (1, 2)  # 1F1B, interleaved

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not megatron_on_cpu.is_installed(), reason="pip install --no-deps megatron-core"),
]


def follow(folder, chunks):
    """On each rank: the same training without the tap and with it, and what it tells."""
    megatron_on_cpu.add_megatron_lm(folder)
    megatron_on_cpu.prepare(chunks)
    from megatron.core.pipeline_parallel import schedules
    from megatron.training import training

    from zeus_core.pipeline.taps.megatron import MegatronTap

    modules = (schedules, training)
    before = [dict(vars(module)) for module in modules]
    plain = megatron_on_cpu.train(megatron_on_cpu.make_run(chunks), 3, 2)
    recorder, runs = Recorder(), []
    recorder.works = []
    recorder.use_work = recorder.works.append
    tap = MegatronTap(lambda run: runs.append(run) or recorder)
    tapped = megatron_on_cpu.train(megatron_on_cpu.make_run(chunks), 3, 2)
    answer = SimpleNamespace(told=recorder.told, is_same=plain == tapped, works=recorder.works)
    answer.run = [(run.rank, run.ranks, len(run.models), run.microbatch_shape) for run in runs]
    recorder.told = []
    broken = megatron_on_cpu.make_run(chunks)
    broken.optimizer.step = lambda: 1 // 0
    with pytest.raises(ArithmeticError):
        megatron_on_cpu.train(broken, 1)
    answer.told_of_failure, recorder.told = [*recorder.told[:1], *recorder.told[-2:]], []
    tap.detach()
    megatron_on_cpu.train(megatron_on_cpu.make_run(chunks), 1)
    answer.is_left = recorder.told == [] and [dict(vars(module)) for module in modules] == before
    return answer


def attach_without_a_gpu(folder, chunks):
    """A rank has no GPU, then no pipeline: training goes on as if nothing was attached."""
    megatron_on_cpu.add_megatron_lm(folder)
    megatron_on_cpu.prepare(chunks)
    from zeus_core.pipeline.taps import megatron

    plain = megatron_on_cpu.train(megatron_on_cpu.make_run(chunks), 2)
    attached = megatron.attach()
    is_same = plain == megatron_on_cpu.train(megatron_on_cpu.make_run(chunks), 2)
    has_optimizer = attached.optimizer is not None
    attached.detach()
    return is_same, has_optimizer


def attach_to_simulated_gpus(folder, chunks):
    megatron_on_cpu.add_megatron_lm(folder)
    megatron_on_cpu.prepare(chunks)
    from zeus_core.pipeline.taps import megatron

    plain = megatron_on_cpu.train(megatron_on_cpu.make_run(chunks), 4)
    attached = megatron.attach(PipelineFrequencySettings(warmup_steps=1, quiet=True), identity={"data": "random"})
    is_same = plain == megatron_on_cpu.train(megatron_on_cpu.make_run(chunks), 4)
    optimizer = attached.optimizer
    (gpu,) = optimizer._monitor.gpus
    identity, phase = optimizer._identity, optimizer.phase
    attached.detach()
    return is_same, gpu, identity, phase.value, optimizer.phase.value


def follow_without_megatron_lm(folder, chunks):
    megatron_on_cpu.add_megatron_lm(folder)
    megatron_on_cpu.prepare(chunks)
    from zeus_core.pipeline.taps import _megatron_tap

    recorder = Recorder()
    _megatron_tap._TRAINING = "megatron.no_such_package"
    _megatron_tap.MegatronTap(lambda run: recorder)
    megatron_on_cpu.run_schedule(megatron_on_cpu.make_run(chunks))
    return recorder.told


def follow_with(folder, chunks, *options_of_megatron):
    """On each rank: training as it is, and with a tap for each of these options: is it the same, is the tap told?"""
    megatron_on_cpu.add_megatron_lm(folder)
    megatron_on_cpu.prepare(chunks)
    from megatron.core.transformer.enums import CudaGraphScope

    from zeus_core.pipeline.taps.megatron import MegatronTap

    plain, answers = megatron_on_cpu.train(megatron_on_cpu.make_run(chunks), 2), []
    for options in options_of_megatron:
        if isinstance(options.get("cuda_graph_scope"), list):
            options["cuda_graph_scope"] = [CudaGraphScope[name] for name in options["cuda_graph_scope"]]
        recorder, log = Recorder(), Log()
        tap, run = MegatronTap(lambda run, recorder=recorder: recorder), megatron_on_cpu.make_run(chunks)
        vars(run.config).update(options)
        is_same = megatron_on_cpu.train(run, 2) == plain
        tap.detach()
        answers.append((is_same, len(recorder.told) > 0, log.messages()))
    return answers


class Log(logging.Handler):
    """Everything that is logged from now on."""

    def __init__(self):
        super().__init__()
        self._records = []
        logging.getLogger("zeus_core").addHandler(self)

    def emit(self, record):
        self._records.append(record.getMessage())

    def messages(self):
        logging.getLogger("zeus_core").removeHandler(self)
        return self._records


@pytest.fixture(scope="module", params=CHUNKS, ids=["1f1b", "interleaved"])
def answers(request, tmp_path_factory):
    return request.param, run_ranks(2, follow, tmp_path_factory.mktemp("megatron"), request.param)


def test_losses_and_parameters_are_bit_identical_and_nothing_remains(answers):
    assert [(answer.is_same, answer.is_left) for answer in answers[1]] == [(True, True)] * 2


def test_the_instructions_are_the_schedules_then_all_reduce_and_the_optimizers_step(answers):
    chunks, ranks = answers
    steps = [answer.told[1 : answer.told.index("step end")] for answer in ranks]
    for step in steps:
        assert [instruction.kind for instruction in step[-2:]] == ["all-reduce", "optimizer-step"]
    passes = [step[:-2] for step in steps]
    if chunks == 1:
        assert passes == [list(of_rank) for of_rank in one_f_one_b(2, MICROBATCHES).ranks]
    schedule = from_instruction_lists(passes)  # complete, each pass once, in an order that can run
    assert (schedule.stages, [set(of_rank) for of_rank in schedule.ranks]) == (
        2 * chunks,
        [
            {
                Instruction(kind, rank + 2 * chunk, microbatch)
                for kind in ("forward", "backward")
                for chunk in range(chunks)
                for microbatch in range(MICROBATCHES)
            }
            for rank in range(2)
        ],
    )


def test_evaluations_and_checkpoints_are_pauses_outside_steps(answers):
    for answer in answers[1]:
        outline = [event for event in answer.told if not isinstance(event, Instruction)]
        pauses = [Activity.EVALUATION, "resume", Activity.CHECKPOINT, "resume"]
        assert outline == [*2 * ["step begin", "step end"], *pauses, "step begin", "step end"]


def test_the_run_says_its_place_and_its_shapes(answers):
    chunks, ranks = answers
    for rank, answer in enumerate(ranks):
        assert answer.run == [(rank, 2, chunks, (megatron_on_cpu.LENGTH, megatron_on_cpu.SIZE))]
        assert answer.works
        assert "2x3x4" in answer.works[-1]["shapes"]


def test_a_step_that_fails_ends_in_a_pause(answers):
    for answer in answers[1]:
        assert answer.told_of_failure == ["step begin", Instruction("optimizer-step", None, None), Activity.IDLE]


def test_without_megatron_lm_a_step_is_a_call_of_the_schedule(tmp_path):
    for told in run_ranks(2, follow_without_megatron_lm, tmp_path, 1):
        assert (told[0], told[-2].kind, told[-1]) == ("step begin", "all-reduce", "step end")


def test_passes_hidden_by_megatron_are_refused_by_name_and_training_is_unchanged(tmp_path):
    scopes = ["full_iteration"], "full_iteration", ["attn"]
    options = [{"overlap_moe_expert_parallel_comm": True}, *({"cuda_graph_scope": scope} for scope in scopes), {}]
    for experts, graph, named_graph, part, usual in run_ranks(2, follow_with, tmp_path, 1, *options):
        assert experts[:2] == graph[:2] == named_graph[:2] == (True, False)
        assert ["overlap_moe_expert_parallel_comm" in message for message in experts[2]] == [True]
        for _, _, messages in (graph, named_graph):
            assert ["full iteration" in message for message in messages] == [True]
        assert part == usual == (True, True, [])


def test_without_pipelines_training_is_unchanged_and_the_log_gives_the_reason(tmp_path):
    (((is_same, is_told, messages),),) = run_ranks(1, follow_with, tmp_path, 1, {})
    assert (is_same, is_told) == (True, False)
    assert ["pipeline_model_parallel_size is 1" in message for message in messages] == [True]


def test_without_a_gpu_training_is_the_same(tmp_path, monkeypatch):
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    assert run_ranks(2, attach_without_a_gpu, tmp_path, 1) == [(True, False)] * 2


def test_each_rank_measures_its_gpu_and_reports_its_profiles_conditions(tmp_path, monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:2")
    for rank, answer in enumerate(run_ranks(2, attach_to_simulated_gpus, tmp_path, 2)):
        is_same, gpu, identity, phase, end_phase = answer
        assert (is_same, gpu, end_phase) == (True, rank, "resting")
        assert phase != "off"
        wanted = {"stages": 4, "stage": rank, "sequence_length": 2, "micro_batch_size": 3, "data": "random"}
        assert {**identity, **wanted} == identity


def train_with_perseus(folder, chunks, times, steps):
    """Train with the real optimizer on simulated GPUs, from the first step to the deployed plan; or without it."""
    megatron_on_cpu.add_megatron_lm(folder)
    megatron_on_cpu.prepare(chunks)
    if times is None:
        return megatron_on_cpu.train(megatron_on_cpu.make_run(chunks), steps)
    from zeus_core.pipeline.taps.megatron import AttachedMegatron

    attached = AttachedMegatron(lambda run: computing_optimizer(times))
    losses = megatron_on_cpu.train(megatron_on_cpu.make_run(chunks), steps)
    record = attached.optimizer.record
    attached.detach()
    record.losses = losses
    return record


@pytest.mark.parametrize("chunks", CHUNKS)
def test_a_plan_keeps_its_promise_and_changes_nothing_that_is_computed(tmp_path, chunks):
    steps = 50
    run = Run(run_ranks(2, train_with_perseus, tmp_path, chunks, SharedTimes(2 * chunks, MICROBATCHES), steps))
    run.check_against(true_profile(2 * chunks, A100), run.records[0].latest["schedule"])
    assert [record.losses for record in run.records] == run_ranks(2, train_with_perseus, tmp_path, chunks, None, steps)
