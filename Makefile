# Each target does its own set-up. Paths are relative throughout, so that a clone may lie in a folder with a space.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PROGRAMS := .venv-programs
TOO_OLD := 'Python 3.11 or newer is needed, and this is ' + sys.version.split()[0] + ': make PYTHON=python3.11'
DEMO := OMP_NUM_THREADS=1 $(RUN)
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(RUN) -m pytest $(RECORD)
PARALLEL := $(PYTEST) --dist worksteal --numprocesses
# More processes than cores where tests wait for the clock or for other processes; the long ones wait most of the time.
WAITING := $$(($(WORKERS) + 1))
WAITING_LONG := $$(($(WORKERS) + 2))
PURE := tests/pipeline/planner tests/search tests/mixed/allocation tests/jobs/test_policies.py tests/electricity tests/training \
	tests/tracing tests/test_measurement.py tests/test_comparison.py \
	$(addprefix tests/optimizer/,test_selectors.py test_search.py test_run_plan.py)
FRAMEWORKS := $(addprefix tests/,huggingface accelerate lightning plain_torch deepspeed)
# Tests that compare readings with the machine's clock run after the others, one at a time. Only files that hold such
# tests are named: to collect them all is to import every framework. In the last list these tests are all long.
LONG := $(shell grep -rlE --include='test_*.py' 'mark\.long|long_but_first' tests)
REAL_TIME := $(shell grep -rl --include='test_*.py' mark.real_time tests)
REAL_TIME_LONG_ONLY := $(addprefix tests/,huggingface/% lightning/% deepspeed/% training/% tracing/%)

.PHONY: demo demo-perseus test test-busy test-long test-frameworks test-floors test-deepspeed coverage lint releases public-api wheel release-check benchmarks docs selfcheck clean

demo: $(VENV)/.ready-all  ## find a power limit while a small language model trains on a simulated GPU
	$(DEMO) examples/huggingface/train_causal_lm.py --simulate A100-SXM4-80GB --output zeus-demo

demo-perseus: $(VENV)/.ready-all  ## plan the clocks of a DeepSpeed pipeline of four stages on simulated GPUs
	$(DEMO) examples/deepspeed/train_gpt2_pipeline.py --output zeus-demo/perseus

test: $(VENV)/.ready-dev  ## the tests, without the long ones
	$(PARALLEL) $(WAITING) -m "not long and not real_time" --durations 10
	$(PYTEST) -m "real_time and not long" $(filter-out $(REAL_TIME_LONG_ONLY),$(REAL_TIME))

test-busy: $(VENV)/.ready-dev  ## the same beside six programs that take all the time they get
	for number in 1 2 3 4 5 6; do while :; do :; done & busy="$$busy $$!"; done; trap "kill $$busy" EXIT INT TERM; $(MAKE) test

test-long: $(VENV)/.ready-dev $(PROGRAMS)/.ready  ## the long, end-to-end tests
	$(PARALLEL) $(WAITING_LONG) -m "long and not real_time" --durations 10 $(LONG)
	$(PYTEST) -m "long and real_time" --durations 10 $(REAL_TIME)

test-frameworks: $(VENV)/.ready-dev  ## the tests of the integrations alone
	$(PARALLEL) $(WORKERS) $(FRAMEWORKS)

test-floors:  ## the same with the oldest frameworks that are supported, in an environment of its own
	PYTEST_ADDOPTS='-W ignore::DeprecationWarning' PIP_CONSTRAINT=tools/floors.txt $(MAKE) VENV=.venv-floors test-frameworks

test-deepspeed: $(VENV)/.ready-dev  ## the tests of Perseus in DeepSpeed, with releases from the oldest supported to the newest
	for release in 0.14.5 0.16.9; do \
		$(RUN) -m pip install --quiet --no-deps --upgrade --target .deepspeed/$$release deepspeed==$$release && \
		PYTHONPATH=.deepspeed/$$release $(PARALLEL) $(WORKERS) tests/deepspeed || exit 1; \
	done
	$(PARALLEL) $(WORKERS) tests/deepspeed

releases:  ## write which releases tests ran with, docs/releases.md, as recorded by `make test-floors RECORD="-p tools.releases"` and others
	$(PYTHON) tools/releases.py

coverage: $(VENV)/.ready-dev  ## which lines of the pure packages their own tests reach; fails below a floor
	$(PARALLEL) $(WORKERS) --cov -m "not long and not real_time" $(PURE) --ignore tests/tracing/test_adapters.py

lint: $(VENV)/.ready-dev  ## style and types, and whether every public type is known to any type checker
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	for package in zeus_core zeus_deepspeed; do \
		PATH="$$PWD/$(VENV)/bin:$$PATH" PYTHONPATH="$$PWD:$$PWD/integrations/deepspeed" basedpyright \
			--verifytypes $$package --ignoreexternal || exit 1; \
	done  # it finds numpy by the `python` of the PATH, whatever --pythonpath says
	# The base classes in the other two packages are of frameworks that a type checker cannot verify.

benchmarks: $(VENV)/.ready-dev  ## timings, each as a ratio measured in the same run; PROFILES=FOLDER, TRACES=FOLDER for published ones
	@status=0; \
	for script in import_time window_overhead callback_overhead growth ranks pipeline_hooks first_plan plan_switching \
		recurring_job micro_batch catalogue; do \
		$(RUN) benchmarks/$$script.py || status=1; \
	done; \
	$(RUN) benchmarks/pipeline_frontier.py $(PROFILES) || status=1; \
	$(RUN) benchmarks/clock_or_limit.py $(PROFILES) || status=1; \
	$(RUN) benchmarks/allocation.py $(if $(TRACES),--traces $(TRACES)) || status=1; \
	exit $$status

docs: $(VENV)/.ready-dev  ## the documentation site, in build/site; needs no network
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet

selfcheck:  ## how well energy is measured on this machine's GPU; with the packages of PYTHON, nothing is installed
	PYTHONPATH=. $(PYTHON) -m zeus_core doctor --measure

public-api: $(VENV)/.ready-dev  ## write the list of public names that a test compares, docs/public-api.txt
	$(RUN) tools/public_api.py

# Over the environment of the other tests, whose packages it leaves as they are: torchvision would change some of them.
$(PROGRAMS)/.ready: $(VENV)/.ready-dev tools/programs.txt
	$(RUN) tools/set_up.py $(PROGRAMS) --over tools/programs.txt
	touch $@

wheel: $(VENV)/.ready-dev
	$(RUN) -m build --wheel

release-check: $(VENV)/.ready-dev  ## whether this checkout can be published: metadata, reproducible builds, changelog, tag
	$(RUN) tools/release_check.py

clean:
	rm -rf $(VENV) $(PROGRAMS) build dist zeus-demo

$(VENV)/.ready-%: pyproject.toml tools/set_up.py
	@$(PYTHON) -c "import sys; sys.exit($(TOO_OLD) if sys.version_info < (3, 11) else 0)"
	$(PYTHON) tools/set_up.py $(VENV) $*
	touch $@
