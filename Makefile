# Each target does its own set-up. Paths are relative throughout, so that a clone may lie in a folder with a space.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
TOO_OLD := 'Python 3.10 or newer is needed, and this is ' + sys.version.split()[0] + ': make PYTHON=python3.11'
DEMO := OMP_NUM_THREADS=1 $(RUN)
LONG := OMP_NUM_THREADS=1 $(RUN) -m pytest -m long
FRAMEWORKS := $(addprefix tests/,huggingface accelerate lightning plain_torch deepspeed)

.PHONY: demo demo-perseus test test-long test-long-frameworks test-long-deepspeed test-long-core test-frameworks test-floors test-deepspeed lint wheel benchmarks clean

demo: $(VENV)/.ready-all  ## find a power limit while a small language model trains on a simulated GPU
	$(DEMO) examples/huggingface/train_causal_lm.py --simulate A100-SXM4-80GB --factor 1.125 --output zeus-demo

demo-perseus: $(VENV)/.ready-all  ## plan the clocks of a DeepSpeed pipeline of four stages on simulated GPUs
	$(DEMO) examples/deepspeed/train_gpt2_pipeline.py --output zeus-demo/perseus

test: $(VENV)/.ready-dev  ## the tests, without the long ones
	OMP_NUM_THREADS=1 $(RUN) -m pytest

test-long: $(VENV)/.ready-dev  ## the long, end-to-end tests, in three processes: they wait most of the time
	$(MAKE) --jobs 3 --output-sync=target test-long-frameworks test-long-deepspeed test-long-core

test-long-frameworks: $(VENV)/.ready-dev
	$(LONG) $(filter-out tests/deepspeed,$(FRAMEWORKS))

test-long-deepspeed: $(VENV)/.ready-dev
	$(LONG) tests/deepspeed

test-long-core: $(VENV)/.ready-dev
	$(LONG) $(FRAMEWORKS:%=--ignore=%)

test-frameworks: $(VENV)/.ready-dev  ## the tests of the integrations alone
	OMP_NUM_THREADS=1 $(RUN) -m pytest $(FRAMEWORKS)

test-floors:  ## the same with the oldest frameworks that are supported, in an environment of its own
	PIP_CONSTRAINT=tools/floors.txt $(MAKE) VENV=.venv-floors test-frameworks

test-deepspeed: $(VENV)/.ready-dev  ## the tests of Perseus in DeepSpeed, with releases from the oldest supported to the newest
	for release in 0.14.5 0.16.9; do \
		$(RUN) -m pip install --quiet --no-deps --upgrade --target .deepspeed/$$release deepspeed==$$release && \
		OMP_NUM_THREADS=1 PYTHONPATH=.deepspeed/$$release $(RUN) -m pytest tests/deepspeed || exit 1; \
	done
	OMP_NUM_THREADS=1 $(RUN) -m pytest tests/deepspeed

lint: $(VENV)/.ready-dev  ## style and types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

benchmarks: $(VENV)/.ready-dev  ## timings, each as a ratio measured in the same run; PROFILES=FOLDER for published ones
	@status=0; \
	for script in import_time window_overhead callback_overhead pipeline_hooks; do \
		$(RUN) benchmarks/$$script.py || status=1; \
	done; \
	$(RUN) benchmarks/pipeline_frontier.py $(PROFILES) || status=1; \
	exit $$status

wheel: $(VENV)/.ready-dev
	$(RUN) -m build --wheel

clean:
	rm -rf $(VENV) build dist zeus-demo

$(VENV)/.ready-%: pyproject.toml tools/set_up.py
	@$(PYTHON) -c "import sys; sys.exit($(TOO_OLD) if sys.version_info < (3, 10) else 0)"
	$(PYTHON) tools/set_up.py $(VENV) $*
	touch $@
