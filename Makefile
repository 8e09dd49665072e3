# Every target takes Hydra overrides: make local-train ARGS="trainer.epochs=1 model=resnet50"
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

ARGS ?=
NPROC ?=
export NPROC

# The first interpreter here that torch has wheels for; make PYTHON=... chooses another.
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& { echo $$p; break; }; done)
endif
HERE = $(or $(PYTHON),$(error no Python 3.10 to 3.13 found; install one or name it: make PYTHON=/path/to/python3))
READY = $(HERE) launch/environment.py
PY := .venv/bin/python
CODE := custom_op entry_point launch benchmarks tests

.PHONY: help setup local-train predict dataset check-dataset sweep image push docker-train sagemaker-train \
	sagemaker-status sagemaker-stop sagemaker-logs sagemaker-download upload sagemaker-dataset setup-aws knobs \
	bench bench-op bench-stall bench-data bench-train bench-launch bench-job-start bench-gpu deaths \
	test test-launch test-dali test-gpu test-container fuzz lint format clean

help: ## This list
	@echo 'make TARGET [ARGS="hydra.overrides=..."]'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Compiler, JPEG headers and .venv, without running anything
	@$(READY) job

local-train: ## Train on this machine, from nothing: set-up, operator, demo data, training, summary
	@$(READY) job
	@$(PY) -m launch.local $(ARGS)

predict: ## Classify images: input=PATH model_dir=runs/latest/model
	@$(READY) job
	@$(PY) -m entry_point.predict $(ARGS)

dataset: ## Pack a folder of images for training: source=... output=...
	@$(READY) job
	@$(PY) -m entry_point.optimize $(ARGS)

check-dataset: ## Read a data set from end to end and report damage: root=...
	@$(READY) job
	@$(PY) -m entry_point.check_dataset $(ARGS)

sweep: ## Train all combinations of values: ARGS="name=rates optim.lr=0.01,0.1"
	@$(READY) job
	@$(PY) -m entry_point.sweep $(ARGS)

image: ## Build the training image: DEVICE=gpu, BASE_IMAGE=..., PREBUILD=1, EXTRAS=dali
	@$(HERE) -m launch.image build

push: ## Push the image, to ECR or to REGISTRY=localhost:5000
	@$(READY) launch
	@.venv-launch/bin/python -m launch.image push

docker-train: ## Train in the image as SageMaker runs it: HOSTS=2, NETWORK=none
	@$(HERE) -m launch.docker $(ARGS)

# The SDK is chosen by SDK=2 (the default) or SDK=3.
SDK ?= 2
LAUNCH := launch$(if $(filter 3,$(SDK)),-v3)
sagemaker-train: ## Train on SageMaker: DRY_RUN=1 prints the request and sends nothing
	@$(READY) $(LAUNCH)
	@.venv-$(LAUNCH)/bin/python -m launch.sagemaker train $(ARGS)

# These take names and options of their own, no overrides.
SAGEMAKER := @.venv-$(LAUNCH)/bin/python -m launch.sagemaker
sagemaker-status: ## The latest jobs on SageMaker, or one: ARGS=NAME
	@$(READY) $(LAUNCH)
	$(SAGEMAKER) status $(ARGS)

sagemaker-stop: ## Stop a job; its checkpoint is kept: ARGS=NAME
	@$(READY) $(LAUNCH)
	$(SAGEMAKER) stop $(ARGS)

sagemaker-logs: ## What a job has printed: ARGS="NAME --follow"
	@$(READY) $(LAUNCH)
	$(SAGEMAKER) logs $(ARGS)

sagemaker-download: ## A job's model and output into runs/NAME: ARGS="NAME --checkpoints"
	@$(READY) $(LAUNCH)
	$(SAGEMAKER) download $(ARGS)

upload: ## Copy a folder to S3, only what changed: source=FOLDER s3=s3://BUCKET/PREFIX
	@$(READY) $(LAUNCH)
	@.venv-$(LAUNCH)/bin/python -m launch.upload $(ARGS)

sagemaker-dataset: ## Pack a data set on SageMaker: source=s3://... output=s3://... target.instance_count=4
	@$(READY) job $(LAUNCH)
	@.venv-$(LAUNCH)/bin/python -m launch.dataset $(ARGS)

setup-aws: ## The role, bucket and repository that jobs need: bucket=NAME; DRY_RUN=1 prints them
	@$(READY) $(LAUNCH)
	@.venv-$(LAUNCH)/bin/python -m launch.setup_aws $(ARGS)

knobs: ## Every setting with its default, allowed values and meaning, as in docs/settings.md
	@$(READY) job >&2
	@$(PY) -m launch.settings

bench: ## Every pipeline engine on your data: data.root=PATH; tables, a page, the setting to use
	@$(READY) job
	@$(PY) -m benchmarks.pipelines.bench $(ARGS)

bench-op: ## The operator against its peers; tables and plots into docs/results/
	@$(READY) job dev bench
	@$(PY) -m benchmarks.operator.op_crop
	@$(PY) -m benchmarks.operator.op_resized
	@$(PY) -m benchmarks.operator.build_time

bench-stall: ## The published stall workload: Pillow, the published operator, ours
	@$(READY) job dev bench
	@$(PY) -m benchmarks.training.stall_step

bench-data: ## Packing against jpegtran, shards against files, start of a large index
	@$(READY) job dev
	@$(PY) -m benchmarks.data.data_startup
	@$(PY) -m benchmarks.data.data_packing
	@$(PY) -m benchmarks.data.data_reading

bench-train: ## What the training loop costs beside a bare one
	@$(READY) job
	@$(PY) -m benchmarks.training.train_overhead

bench-launch: ## What a dry run and an import of the launcher take
	@$(READY) job launch launch-v3
	@$(PY) -m benchmarks.launching.launch_time

bench-job-start: ## From docker run to the first step, with and without PREBUILD
	@$(READY) job
	@$(PY) -m benchmarks.launching.job_start $(ARGS)

bench-gpu: ## On a GPU: ResNet-50 fed by threads, by DALI, and nvJPEG on trimmed files
	@$(READY) job dev dali
	@$(PY) -m benchmarks.training.gpu_training

deaths: ## Kill a training ARGS=50 times and compare its weights with an undisturbed one's
	@$(READY) job
	@$(PY) -m benchmarks.training.train_interruptions $(ARGS)

test: ## All tests that need neither Docker nor a GPU
	@$(READY) job dev
	@$(PY) -m pytest -n 2 --dist worksteal $(ARGS)

test-launch: ## Both SDKs send the same request, against a server on this machine
	@$(READY) job dev launch launch-v3
	@REQUIRE_SDKS=1 $(PY) -m pytest -n 2 --dist worksteal tests/launch/aws/test_sdk_contract.py $(ARGS)

test-dali: ## The engine dali, on the CPU where there is no GPU; installs it
	@$(READY) job dev dali
	@REQUIRE_DALI=1 $(PY) -m pytest tests/entry_point/data -k dali $(ARGS)

test-gpu: ## What only a GPU can run
	@$(READY) job dev dali
	@$(PY) -m pytest -m gpu $(ARGS)

test-container: ## The image and its launchers on a real engine (Linux, root)
	@$(READY) job dev
	@TEST_CONTAINER=1 $(PY) -m pytest tests/launch/real_engine $(ARGS)

fuzz: ## Fuzz the operator under sanitizers: SECONDS=60 (needs clang++)
	@$(READY) job
	@command -v clang++ >/dev/null || { echo "fuzz: no clang++; on Debian: apt-get install clang libclang-rt-dev" >&2; exit 1; }
	@PYTHON=$(PY) custom_op/fuzz/run.sh $(or $(SECONDS),60)

lint: ## ruff, mypy, clang-format, shellcheck, hadolint
	@$(READY) job dev
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m mypy $(CODE)
	.venv/bin/clang-format --dry-run -Werror $$(git ls-files '*.cpp' '*.h')
	.venv/bin/shellcheck .ci/run $$(git ls-files '*.sh')
	.venv/bin/hadolint Dockerfile

format: ## Put every file into the form that lint asks for
	@$(READY) job dev
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)
	.venv/bin/clang-format -i $$(git ls-files '*.cpp' '*.h')

clean: ## Remove environments and caches; runs/ and data/ stay
	rm -rf .venv .venv-* .setup.lock .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
