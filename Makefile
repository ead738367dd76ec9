# Everything runs in an environment of its own, made on the first call and made again when pyproject.toml changes.
PYTHON ?= python3
VENV ?= .venv
ARCH ?= sm_75
# One more than cores: some tests wait for processes and time limits.
WORKERS ?= $(shell expr $$(nproc) + 1)
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: sweep test lint collected gpu-test proof proof-cpu proof-gpu generated clean

# The main job: legal variants, compiled, validated and timed where there is a GPU.
sweep: $(STAMP)
	$(BIN)/wmmagen sweep --arch $(ARCH)

# Everything that this machine can check. What one process imports, hundreds of others do: bytecode is written whatever
# the environment says, and that of the tests, which costs most of their collection, while lint has one core.
test: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP)
	@$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j 2) lint collected
	$(BIN)/python -m pytest -q --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What cannot be collected is the tests' to complain of.
collected: $(STAMP)
	-@$(BIN)/python -m pytest -q --collect-only > /dev/null

# The tests that need a GPU; fails where there is none instead of skipping.
gpu-test: $(STAMP)
	WMMAGEN_NEEDS_GPU=1 $(BIN)/python -m pytest -q tests/gpu

# The long proofs and their records, which are committed: those that need no GPU, and where there is one, all others but
# prove_cublas.py, which needs PyTorch. A proof that fails stops no other one; make says in the end which have failed.
proof:
	@failed=0; $(MAKE) proof-cpu || failed=1; \
	if $(BIN)/python -c "from wmmagen.backends import gpu; gpu.devices()" 2> /dev/null; then \
	  $(MAKE) proof-gpu || failed=1; \
	else \
	  echo "There is no GPU here: make proof-gpu is left out. wmmagen doctor says what is missing."; \
	fi; \
	exit $$failed

define CPU_PROOFS
tests/nvrtc/prove_executor.py
tests/nvrtc/prove_mutants.py
tests/nvrtc/prove_ragged.py
tests/nvrtc/prove_estimate.py
tests/nvrtc/prove_types.py
tests/nvrtc/prove_epilogues.py
tests/nvrtc/prove_batched.py
tests/nvrtc/prove_covering.py
tests/nvrtc/prove_layouts.py
tests/nvrtc/prove_lint.py
tests/gpu/prove_split.py --backend cpu
tests/gpu/prove_sliced.py --backend cpu
endef

define GPU_PROOFS
tests/gpu/prove_grid.py
tests/gpu/prove_executor.py
tests/gpu/prove_types.py
tests/gpu/prove_epilogues.py
tests/gpu/prove_covering.py
tests/gpu/prove_counts.py
tests/gpu/prove_accuracy.py
tests/gpu/prove_emission.py
tests/gpu/prove_large.py
tests/gpu/prove_batched.py
tests/gpu/prove_layouts.py
tests/gpu/prove_split.py
tests/gpu/prove_sliced.py
tests/gpu/prove_ragged.py
tests/gpu/prove_ragged_speed.py
tests/gpu/prove_sanitizer.py
tests/gpu/prove_mutants.py
tests/gpu/prove_timing.py
tests/gpu/prove_general.py
tests/gpu/prove_types_speed.py
tests/gpu/prove_epilogue_cost.py
tests/gpu/prove_limits.py
tests/gpu/prove_shapes.py --list batched --screen 64 --at-least 5
tests/gpu/prove_shapes.py --list rows --screen 64
tests/gpu/prove_ceiling.py
tests/gpu/prove_sweep.py --at-least 300
tests/gpu/prove_sweep.py --arch sm_75 --trials 40
endef

export CPU_PROOFS GPU_PROOFS

# Runs each line that comes in, a proof with its arguments.
RUN_ALL = { \
	  failed=; \
	  while read -r proof; do \
	    echo "$(BIN)/python $$proof"; \
	    $(BIN)/python $$proof < /dev/null || failed="$$failed  $$proof (exit status $$?)\n"; \
	  done; \
	  if [ -n "$$failed" ]; then printf "Failed:\n%b" "$$failed"; exit 1; fi; \
	}

proof-cpu: $(STAMP)
	@printf '%s\n' "$$CPU_PROOFS" | $(RUN_ALL)

proof-gpu: $(STAMP)
	@printf '%s\n' "$$GPU_PROOFS" | $(RUN_ALL)

# Every committed kernel again, from its own name, and the documents that are made.
generated: $(STAMP)
	while read -r name; do \
	  file="generated/$$name.cu"; \
	  $(BIN)/wmmagen render "$$(basename "$$name")" --arch "$$(dirname "$$name")" > "$$file.new" \
	  && mv "$$file.new" "$$file" || exit 1; \
	done < generated/shipped.txt
	$(BIN)/python -m wmmagen.documents
	$(BIN)/python -m tests.shipped

clean:
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find wmmagen tests -name __pycache__ -prune -exec rm -r {} +

# Without bytecode: what is imported is compiled then, and to compile all of it takes longer than it saves.
$(STAMP): pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv "$(VENV)"
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint .ci/constraints.txt --editable ".[dev]"
	touch "$(STAMP)"
