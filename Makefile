# Each target prepares what it needs in .venv: python3, make and a package index are enough.
# The second time it installs only what is missing. `rm -r .venv` starts from nothing.
#
#   KERAS_BACKEND=jax make demo         one backend; `make test` runs both where it is not set
#   make test ARGS="-k ring -x"         ARGS goes to pytest, or to the demo or the benchmark

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

TF_CPP_MIN_LOG_LEVEL ?= 2
export TF_CPP_MIN_LOG_LEVEL

DEMO_EXTRAS := plots$(if $(filter jax,$(KERAS_BACKEND)),-jax)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-slow bench lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/.has-$(DEMO_EXTRAS)
	$(BIN)/python examples/demo.py $(ARGS)

# Everything is run before the target fails, so that one run shows all that is wrong.
test: $(VENV)/.has-test
	@status=0; \
	$(BIN)/ruff check . || status=1; \
	$(BIN)/ruff format --check . || status=1; \
	$(call pytest_each_backend,not slow); \
	exit $$status

test-slow: $(VENV)/.has-test
	@status=0; \
	$(call pytest_each_backend,slow); \
	exit $$status

# A process for each backend: Keras settles on one when it is first imported. They run at the same
# time, each line of theirs behind the backend's name, and the last lines once more at the end.
define pytest_each_backend
backends="$${KERAS_BACKEND:-tensorflow jax}"; logs=$$(mktemp -d); \
for backend in $$backends; do \
	{ KERAS_BACKEND=$$backend SDL_VIDEODRIVER=dummy $(BIN)/python -m pytest \
		-o cache_dir=.pytest_cache/$$backend -m "$(1)" $(ARGS); echo $$? > $$logs/$$backend.status; \
	} 2>&1 | tee $$logs/$$backend.log | sed "s/^/$$backend: /" & \
done; \
wait; \
for backend in $$backends; do \
	echo "== KERAS_BACKEND=$$backend"; \
	tail -n 1 $$logs/$$backend.log; \
	[ "$$(cat $$logs/$$backend.status)" = 0 ] || status=1; \
done; \
rm -r $$logs
endef

bench: $(VENV)/.has-test
	$(BIN)/python benchmarks/run.py $(ARGS)

lint: $(VENV)/.has-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name .venv -prune -o -name .git -prune -o -name __pycache__ -prune -exec rm -rf {} +

# A stamp for each set of extras, joined by "-": made again when the requirements change.
$(VENV)/.has-%: setup.py pyproject.toml $(VENV)/.made
	@echo "installing kerasrl-gpu[$(subst -,$(comma),$*)] into $(VENV)"
	@$(INSTALL) --editable ".[$(subst -,$(comma),$*)]"
	@touch $@

# The stamp, not bin/python, says that it is whole: a failed venv leaves bin/python behind.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "Python 3.10 or newer is needed: make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { echo "$(PYTHON) makes no virtual environment: install Debian's python3-venv"; exit 1; }
	@touch $@

comma := ,
