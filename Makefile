# Each target does everything from a bare clone: it needs Python 3.10 or newer, a C++ compiler and make.
PYTHON ?= python3
JOBS ?= 2
# More options for pytest: make test PYTEST="-k exp", PYTEST="tests/pure -x", ...
PYTEST ?=
BIN := .venv/bin
STAMP := .venv/spmdx.stamp
EXTRAS := mpi,examples,test,docs,dev

.PHONY: help install demo test test-all check format docs clean
help:
	@echo "make demo      train a classifier on real data on four ranks"
	@echo "make test      the tests, about ten minutes; PYTEST=\"-k exp\" passes options on to pytest"
	@echo "make test-all  the tests marked slow as well, some hours"
	@echo "make check     lint, formats, types and the floors"
	@echo "make format    rewrite the sources in their formats"
	@echo "make docs      the documentation, in docs/_build/html"
	@echo "make install   only the virtual environment, .venv"

demo: $(STAMP)
	$(BIN)/mpiexec -n 4 $(BIN)/python examples/digits.py

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist worksteal $(PYTEST)

test-all: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST)

CXX_FILES = $(wildcard $(foreach ending,h hpp cuh cu cpp,cuda/*.$(ending) bindings/*.$(ending)))

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(if $(CXX_FILES),$(BIN)/clang-format --dry-run --Werror $(CXX_FILES))
	$(BIN)/python -m pytest -q tests/pure/test_floors.py

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(if $(CXX_FILES),$(BIN)/clang-format -i $(CXX_FILES))

docs: $(STAMP)
	$(BIN)/python -m sphinx -W -b html docs docs/_build/html

clean:
	rm -rf .venv build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The install is editable: a change to a Python file needs no rule here, a change to the build does. The build tools come
# first, so that later builds of the extension are incremental; pip checks their versions against pyproject.toml.
install: $(STAMP)
$(STAMP): pyproject.toml CMakeLists.txt $(CXX_FILES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet cmake ninja pybind11 scikit-build-core
	$(BIN)/python -m pip install --quiet --no-build-isolation --check-build-dependencies --editable '.[$(EXTRAS)]'
	touch $@
