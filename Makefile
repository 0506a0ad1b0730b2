# What is done often. Each target wants an environment with `pip install -e ".[dev,docs,bench]"`.
.PHONY: test program slow lint docs serve-docs bench ci

TWO = -n 2 --dist loadfile --no-loadscope-reorder  # processes, each with whole files

test:  ## the fast tests, two to four minutes
	pytest $(TWO)

program:  ## tests that train and export as a user does
	pytest $(TWO) -m "program and not slow"

slow:  ## tests that take minutes, the notebooks among them
	pytest $(TWO) -m slow

lint:
	ruff check .
	ruff format --check .
	codespell
	mypy

docs:  ## the site, in site/index.html
	mkdocs build --strict

serve-docs:  ## the site at http://localhost:8000, built again at each change
	mkdocs serve

bench:  ## ours alone, in the small size
	python -m benchmarks.training --config small
	python -m benchmarks.translation --config small

ci:
	.ci/run
