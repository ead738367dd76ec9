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
	@$(MAKE) --no-print-directory -j 2 lint collected
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
# prove_cublas.py, which needs PyTorch.
proof: proof-cpu
	@if $(BIN)/python -c "from wmmagen.backends import gpu; gpu.devices()" 2> /dev/null; then \
	  $(MAKE) proof-gpu; \
	else \
	  echo "There is no GPU here: make proof-gpu is left out. wmmagen doctor says what is missing."; \
	fi

proof-cpu: $(STAMP)
	$(BIN)/python tests/nvrtc/prove_executor.py
	$(BIN)/python tests/nvrtc/prove_mutants.py
	$(BIN)/python tests/nvrtc/prove_ragged.py
	$(BIN)/python tests/nvrtc/prove_estimate.py
	$(BIN)/python tests/nvrtc/prove_types.py
	$(BIN)/python tests/nvrtc/prove_epilogues.py
	$(BIN)/python tests/nvrtc/prove_batched.py
	$(BIN)/python tests/nvrtc/prove_covering.py
	$(BIN)/python tests/nvrtc/prove_layouts.py
	$(BIN)/python tests/gpu/prove_split.py --backend cpu
	$(BIN)/python tests/gpu/prove_sliced.py --backend cpu

proof-gpu: $(STAMP)
	$(BIN)/python tests/gpu/prove_grid.py
	$(BIN)/python tests/gpu/prove_executor.py
	$(BIN)/python tests/gpu/prove_types.py
	$(BIN)/python tests/gpu/prove_epilogues.py
	$(BIN)/python tests/gpu/prove_covering.py
	$(BIN)/python tests/gpu/prove_counts.py
	$(BIN)/python tests/gpu/prove_accuracy.py
	$(BIN)/python tests/gpu/prove_emission.py
	$(BIN)/python tests/gpu/prove_large.py
	$(BIN)/python tests/gpu/prove_batched.py
	$(BIN)/python tests/gpu/prove_layouts.py
	$(BIN)/python tests/gpu/prove_split.py
	$(BIN)/python tests/gpu/prove_sliced.py
	$(BIN)/python tests/gpu/prove_ragged.py
	$(BIN)/python tests/gpu/prove_ragged_speed.py
	$(BIN)/python tests/gpu/prove_sanitizer.py
	$(BIN)/python tests/gpu/prove_mutants.py
	$(BIN)/python tests/gpu/prove_timing.py
	$(BIN)/python tests/gpu/prove_general.py
	$(BIN)/python tests/gpu/prove_types_speed.py
	$(BIN)/python tests/gpu/prove_epilogue_cost.py
	$(BIN)/python tests/gpu/prove_limits.py
	$(BIN)/python tests/gpu/prove_shapes.py --at-least 5
	$(BIN)/python tests/gpu/prove_ceiling.py
	$(BIN)/python tests/gpu/prove_sweep.py --at-least 300
	$(BIN)/python tests/gpu/prove_sweep.py --arch sm_75 --trials 40

# Every committed kernel again, from its own name, and the documents that are made.
generated: $(STAMP)
	while read -r name; do \
	  file="generated/$$name.cu"; \
	  $(BIN)/wmmagen render "$$(basename "$$name")" --arch "$$(dirname "$$name")" > "$$file.new" \
	  && mv "$$file.new" "$$file" || exit 1; \
	done < generated/shipped.txt
	$(BIN)/python -m wmmagen.documents

clean:
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Without bytecode: what is imported is compiled then, and to compile all of it takes longer than it saves.
$(STAMP): pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv "$(VENV)"
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint .ci/constraints.txt --editable ".[dev]"
	touch "$(STAMP)"
