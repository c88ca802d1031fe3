# Everything a person or CI asks for, without root: a virtual environment in .venv, the package installed into it, a command.
# Nothing is done twice: .venv/stamps says what is there.

VENV ?= .venv
# How pip is told to install torch; empty: without torch, whose tests are then skipped and listed.
TORCH ?= torch==2.13.0
# A Python to use; empty: the first that will do.
PYTHON ?=
# More arguments for pytest, for tests/hipsim/parts.py, tests/integrations/run.py, the benches, tools/wheel_try.py,
# bench/instructions.py.
PYTEST ?=
PARTS ?=
HOSTS ?=
BENCH ?=
WHEEL ?=
COUNT ?=
# What was given of the fuzzer's settings (tests/fuzz/run.py says what they are).
FUZZ = $(foreach name,FUZZ_SEED FUZZ_CALLS FUZZ_CALL FUZZ_JOBS,$(if $($(name)),$(name)=$($(name))))

STAMPS := $(VENV)/stamps
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
WERROR := $(if $(CI),-C cmake.define.MMF_WERROR=ON)
PACKAGE := pyproject.toml CMakeLists.txt README.md LICENSE $(shell find licenses cmake csrc python/matmul_fused -type f -not -name '*.pyc' -not -path '*/__pycache__*')
C_SOURCES := $(shell find csrc bench tests/c tests/stub_cuda tests/hipsim -name '*.[ch]' -o -name '*.inc')
PYTHON_SOURCES := python tests tools bench examples

.PHONY: help install demo test test-full test-integrations simulate sanitize fuzz wheel instructions release tag pages aarch64 bench bench-cpu results lint format clean torch
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMPS)/install ## the package into .venv

demo: $(STAMPS)/install ## install into .venv and run the example of the README
	$(BIN)/python tools/readme.py README.md

# A file's tests share what they made: one process runs them all. One more than there are processors, as tests also wait.
PROCESSES := -n $$(($$(nproc) + 1)) --maxprocesses 8 --dist loadfile

test: $(STAMPS)/install $(STAMPS)/test torch ## the suite, in processes, and simulate; TORCH= for a run without torch, PYTEST= for a part
	$(BIN)/python -m pytest $(or $(PYTEST),$(PROCESSES))
	$(if $(PYTEST),,$(BIN)/python tests/hipsim/parts.py)

test-full: $(STAMPS)/install $(STAMPS)/test torch ## every case of the case list, and the slow tests
	$(BIN)/python -m pytest --full $(or $(PYTEST),$(PROCESSES))
	$(if $(PYTEST),,$(BIN)/python tests/hipsim/parts.py --full)

test-integrations: $(STAMPS)/install $(STAMPS)/test torch ## the plugins inside the real vLLM, SGLang and transformers; HOSTS= for some
	$(BIN)/python tests/integrations/run.py $(HOSTS)

simulate: $(STAMPS)/install $(STAMPS)/test ## the sweeps on simulated AMD GPUs; PARTS= for some of them
	$(BIN)/python tests/hipsim/parts.py $(PARTS)

sanitize: $(STAMPS)/test $(STAMPS)/sanitize torch ## C tests and Python tests under ASan+UBSan and TSan, and planted bugs
	$(BIN)/python tests/sanitize/run.py

fuzz: $(STAMPS)/test $(STAMPS)/sanitize ## random calls under ASan+UBSan; FUZZ_SEED=, FUZZ_CALLS=, FUZZ_CALL= to repeat one
	$(FUZZ) $(BIN)/python tests/fuzz/run.py

bench: $(STAMPS)/install torch ## timings beside NumPy and torch
	$(BIN)/python -m matmul_fused bench $(BENCH)

bench-cpu: $(STAMPS)/install $(STAMPS)/test torch ## the CPU beside torch, torch.compile and NumPy, and its inner loops, into bench/RESULTS.md and docs/cpu_*.svg (15 minutes)
	$(BIN)/python bench/bench_cpu.py $(BENCH)
	$(BIN)/python bench/bench_microkernel.py
	$(BIN)/python bench/picture.py
	$(BIN)/python bench/cpu_roofline.py

results: $(STAMPS)/install ## what `make test` and `make wheel` measured, into bench/RESULTS.md
	$(BIN)/python bench/results.py

wheel: $(if $(DEVICE),$(STAMPS)/install) $(STAMPS)/wheel ## the wheels, into dist/; checked, and tried on every Python found; WHEEL=--ends for less, DEVICE=--installed for the GPU code of the installed package
	$(BIN)/python tools/wheel_build.py $(DEVICE)
	$(BIN)/python -m pytest --full tests/test_wheel.py
	$(BIN)/python tools/wheel_try.py $(WHEEL)

# Where both are asked for, it waits for wheel, whose build directory it uses.
instructions: $(if $(DEVICE),$(STAMPS)/install) $(STAMPS)/wheel $(STAMPS)/test | $(filter wheel,$(MAKECMDGOALS)) ## counted instructions beside bench/instructions.json; COUNT=--write renews it, DEVICE= as for wheel
	$(BIN)/python tools/wheel_build.py $(DEVICE) x86_64
	$(BIN)/python bench/instructions.py $(COUNT)
	$(BIN)/python -m pytest --full tests/test_instructions.py

pages: $(STAMPS)/install ## the API as HTML, from the docstrings, into build/pages
	$(BIN)/python tools/pages.py

release: $(STAMPS)/wheel ## what is published of HEAD, into dist/release: built twice, compared, checked, tried (10 minutes)
	$(BIN)/python tools/release.py

tag: $(STAMPS)/wheel ## the tag of the version, if dist/release was made of HEAD
	$(BIN)/python tools/release.py tag

aarch64: $(STAMPS)/wheel ## the C tests for aarch64, under emulation
	emulator=$$(sh tools/qemu_aarch64.sh build/qemu) && ZIG=$$($(BIN)/python tools/wheel_build.py zig) \
	    $(BIN)/cmake --fresh -S . -B build/aarch64 --toolchain cmake/zig.cmake -DMMF_ZIG_ARCH=aarch64 \
	    -DCMAKE_CROSSCOMPILING_EMULATOR="$$emulator" -DMMF_WERROR=$(if $(CI),ON,OFF) \
	    -DMMF_BUILD_EXTENSION=OFF -DMMF_BUILD_TESTS=ON -DMMF_GPU_ARCHS=none -DMMF_TEST_CASES=150
	$(BIN)/cmake --build build/aarch64 --parallel $$(nproc)
	$(BIN)/ctest --test-dir build/aarch64 --verbose --no-tests=error

lint: $(STAMPS)/install $(STAMPS)/lint ## formatting, types, spelling, the house rules
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/clang-format --dry-run -Werror $(C_SOURCES)
	$(BIN)/codespell csrc python tests tools bench examples cmake docs *.md
	$(BIN)/mypy python/matmul_fused
	$(BIN)/python -m pytest tests/test_lint.py

format: $(STAMPS)/lint ## rewrite the sources as lint wants them
	$(BIN)/ruff check --fix $(PYTHON_SOURCES)
	$(BIN)/ruff format $(PYTHON_SOURCES)
	$(BIN)/clang-format -i $(C_SOURCES)

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/venv:
	@python=$$(sh tools/find_python.sh $(PYTHON)) && set -x && "$$python" -m venv $(VENV)
	$(PIP) install --quiet --upgrade 'pip>=25.1'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/install: $(STAMPS)/venv $(PACKAGE)
	@touch $@.new
	$(PIP) install --quiet $(strip $(WERROR) .)
	@mv $@.new $@

$(STAMPS)/test $(STAMPS)/lint $(STAMPS)/sanitize $(STAMPS)/wheel: $(STAMPS)/%: $(STAMPS)/venv pyproject.toml
	$(PIP) install --quiet --group $*
	@touch $@

torch: $(STAMPS)/venv
	@if [ "$(TORCH)" != "$$(cat $(STAMPS)/torch 2>/dev/null)" ]; then set -ex; \
	    $(PIP) $(if $(TORCH),install --quiet $(TORCH),uninstall --quiet --yes torch); echo "$(TORCH)" >$(STAMPS)/torch; fi
