# ARGS: Hydra overrides for everything under Train and SageMaker, and for docker-train. image and
# push read variables instead; figures and test pass ARGS to the program that they run.
SHELL := /bin/bash
# Without +B, bash would split a={b:1,c:2} into two words.
.SHELLFLAGS := -eu +B -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Without UTF-8 mode, a Latin-1 or ASCII locale would change names of classes, or fail to print them.
export PYTHONUTF8 := 1
# PYTHONSAFEPATH=1 would hide the packages of this folder.
unexport PYTHONSAFEPATH
# Without bytecode, each process would compile all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

ARGS ?=
ONLY ?=

# The first interpreter found that the pins support; make PYTHON=... chooses another.
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null \
	&& { echo $$p; break; }; done)
endif
# make stops at an unknown variable on its command line: it is misspelt, or a setting, which begins in
# lower case.
VARIABLES := ARGS ONLY PYTHON CODE DRY_RUN HOSTS NETWORK GPUS SHM_SIZE PORT ENGINE IMAGE \
	DEVICE BASE_IMAGE PREBUILD EXTRAS BUILD_OPTIONS REGISTRY SECONDS SINCE RUNS SEED
GIVEN := $(foreach v,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(v)))),$(v)))
UNKNOWN := $(sort $(filter-out $(VARIABLES) AWS_% %_proxy %_PROXY,$(GIVEN)))
SETTINGS := $(filter $(addsuffix %,a b c d e f g h i j k l m n o p q r s t u v w x y z),$(UNKNOWN))
ifneq (,$(filter-out $(SETTINGS),$(UNKNOWN)))
$(error $(filter-out $(SETTINGS),$(UNKNOWN)): no such variable, must be one of $(VARIABLES); \
	variables for other programs go before make, as in CXX=clang++ make)
endif
ifneq (,$(filter args dry_run,$(SETTINGS)))
$(error $(filter args dry_run,$(SETTINGS)): variables of make are in capitals, as in DRY_RUN=1 ARGS="...")
endif
ifneq (,$(SETTINGS))
$(error settings go into ARGS: make $(MAKECMDGOALS) ARGS="$(strip $(value ARGS) \
	$(foreach v,$(SETTINGS),$(v)=$(value $(v))))")
endif

# DRY_RUN=1 must not send anything, so targets without a dry run are refused.
WITHOUT_DRY_RUN := $(filter-out help setup-aws upload sagemaker%,$(MAKECMDGOALS))
ifneq (,$(and $(filter-out 0,$(DRY_RUN)),$(WITHOUT_DRY_RUN)))
$(error DRY_RUN=$(DRY_RUN): $(WITHOUT_DRY_RUN) has no dry run; nothing was done)
endif

HERE = $(or $(PYTHON),$(error no Python 3.11 to 3.14 found; install one or name it: make PYTHON=/path/to/python3))
READY = $(HERE) -m launch.environment
JOB = $(READY) job $(EXTRAS)
PY := .venv/bin/python
LAUNCH_PY := .venv-launch/bin/python
CODE := custom_op entry_point launch project examples benchmarks tests
# $(call check_only,WORDS) stops unless ONLY is empty or one of the words.
check_only = $(if $(or $(filter-out $(1),$(ONLY)),$(word 2,$(ONLY))),$(error ONLY=$(ONLY): must be one of $(1)))

.PHONY: help setup local-train weights predict evaluate serve dataset check-dataset show-batch sweep compare \
	bench image push docker-train docker-serve setup-aws upload sagemaker-dataset sagemaker-predict sagemaker-train \
	sagemaker sagemaker-deploy test figures lint format clean

## Train, on this machine
local-train: ## Train, with .venv made first; without ARGS a demo
	@$(JOB)
	@$(PY) -m launch.local $(ARGS)

weights: ## Fetch published weights to fine-tune: ARGS=resnet50
	@$(JOB)
	@$(PY) -m entry_point weights $(ARGS)

predict: ## Predict images: ARGS="input=PATH output_dir=DIR"
	@$(JOB)
	@$(PY) -m entry_point predict $(ARGS)

evaluate: ## Evaluate a model: ARGS="model_dir=DIR data.root=DIR"
	@$(JOB)
	@$(PY) -m entry_point evaluate $(ARGS)

serve: ## Answer requests on port 8080: ARGS="model_dir=DIR"
	@$(JOB)
	@$(PY) -m entry_point serve $(ARGS)

dataset: ## Pack images for training: ARGS="source=DIR output=DIR"
	@$(JOB)
	@$(PY) -m entry_point optimize $(ARGS)

check-dataset: ## Read a whole dataset and report damage: ARGS="root=DIR"
	@$(JOB)
	@$(PY) -m entry_point check-dataset $(ARGS)

show-batch: ## Draw training samples: ARGS="data=folder data.root=DIR"
	@$(JOB)
	@$(PY) -m entry_point show-batch $(ARGS)

sweep: ## Train each combination: ARGS="name=lr optim.lr=0.01,0.1"
	@$(JOB)
	@$(PY) -m entry_point sweep $(ARGS)

compare: ## Compare the runs in runs/, or ARGS="FOLDER FOLDER"
	@$(JOB)
	@$(PY) -m entry_point compare $(ARGS)

bench: ## Compare pipeline engines: ARGS="data.root=DIR"
	@$(JOB)
	@$(PY) -m benchmarks.pipelines.bench $(ARGS)

setup: ## Create .venv: EXTRAS="timm dali"
	@$(JOB)

## Container
image: ## Build: DEVICE=gpu BASE_IMAGE=... PREBUILD=0 EXTRAS=dali
	@$(HERE) -m launch.image build

push: ## Push it to ECR, or to REGISTRY=localhost:5000
	@$(HERE) -m launch.image push

docker-train: ## Train in it as SageMaker does: GPUS=1 NETWORK=none
	@$(HERE) -m launch.docker train $(ARGS)

docker-serve: ## Serve a model in it: PORT=8080 ARGS="model_dir=DIR"
	@$(HERE) -m launch.docker serve $(ARGS)

## SageMaker
setup-aws: ## Create role, bucket, repository: ARGS="Bucket=NAME"
	@$(HERE) -m launch.setup_aws $(ARGS)

# Hidden files are not copied unless a filter in ARGS includes them: the AWS CLI uses the last filter.
SYNC = aws s3 sync --exclude='.*' --exclude='*/.*' $(ARGS)
upload: ## Copy changed files: ARGS="DIR s3://BUCKET/DIR"
	@$(if $(filter-out 0,$(DRY_RUN)),printf '%q ' $(SYNC); echo; exit;) \
	command -v aws >/dev/null || { echo 'upload: no command aws: install the AWS CLI' >&2; exit 2; }; \
	$(SYNC); \
	for word in $(ARGS); do [[ $$word != s3://* ]] || to=$${word%/}/; done; \
	[[ $$to != *,* ]] || to="'$$to'"; \
	printf 'next: make sagemaker-train ARGS="job.channels.training=%q ..." trains on it\n' "$$to"

sagemaker-dataset: ## Pack in a job: ARGS="source=s3://... output=s3://..."
	@$(READY) launch
	@$(LAUNCH_PY) -m launch.sagemaker dataset $(ARGS)

sagemaker-predict: ## Predict: ARGS="JOB input=s3://... output_dir=s3://..."
	@$(READY) launch
	@$(LAUNCH_PY) -m launch.sagemaker predict $(ARGS)

sagemaker-train: ## Submit a training job; DRY_RUN=1 only prints the request
	@$(READY) launch
	@$(LAUNCH_PY) -m launch.sagemaker train $(ARGS)

sagemaker: ## List jobs, or ARGS="status|logs|stop|download NAME"
	@$(READY) launch
	@$(LAUNCH_PY) -m launch.sagemaker $(or $(ARGS),status)

sagemaker-deploy: ## Serve a job: ARGS="JOB"; ARGS="undeploy ENDPOINT"
	@$(READY) launch
	@$(LAUNCH_PY) -m launch.sagemaker.hosting $(ARGS)

## Develop
help: ## This list
	@echo 'make TARGET [ARGS="key=value ..."]; configs/ holds the keys'
	@awk -F ':.*## ' '/^## / { printf "\n%s\n", substr($$0, 4) } \
		/^[a-z-]+:.*## / { printf "  %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.DEFAULT: # an unknown target
	@echo "make $@: no such target; make help lists them" >&2
	@exit 2

# The tests of ONLY=NAME, and the extras to install besides job. Without ONLY, no test needs an engine
# or a GPU.
TESTS := changed launch dali gpu container fuzz arm64 chaos documents
PYTEST := $(PY) -m pytest
# Three processes even on two cores, as tests wait for processes, signals and deadlines.
PARALLEL := $(PYTEST) -n 3 --dist worksteal
test-runs- := $(PARALLEL)
test-runs-changed := $(PY) -m tests.changed -n 3 --dist load --session-timeout=$(or $(SECONDS),120)
test-runs-launch := REQUIRE_SDKS=1 $(PARALLEL) tests/launch/sdk
test-runs-dali := REQUIRE_DALI=1 $(PYTEST) tests/entry_point/data tests/benchmarks \
	tests/launch/containers -k dali
test-runs-gpu := $(PYTEST) -m gpu
test-runs-container := TEST_CONTAINER=1 $(PYTEST) tests/launch/real_engine
test-runs-fuzz := command -v clang++ >/dev/null \
	|| { echo "fuzz: no clang++; on Debian: apt-get install clang libclang-rt-dev" >&2; exit 1; }; \
	tests/fuzz/run.sh $(or $(RUNS),100000) $(or $(SEED),1)
test-runs-arm64 := PYTHON=$(PY) tests/fuzz/arm64.sh
test-runs-chaos := CHAOS_S=$(or $(SECONDS),200) CHAOS_SEED=$(or $(SEED),1) \
	$(PARALLEL) -rP tests/chaos
test-runs-documents := TEST_DOCUMENTS=1 $(PARALLEL) -rP \
	tests/test_printed_commands.py tests/test_recipes.py
test-installs-documents := timm bench
test-installs- := timm mlflow wandb bench
test-installs-launch := launch-v2 launch-v3
# These extras are imported by the files that are searched for tests; `bench` includes DALI.
test-installs-dali := timm bench
test-installs-gpu := timm bench
test-installs-container := launch launch-v2 launch-v3
test: ## All tests, or ONLY=changed|launch|gpu|container|...
	$(call check_only,$(TESTS))@$(if $(filter fuzz,$(ONLY)),,$(READY) job dev $(test-installs-$(ONLY)))
	@$(test-runs-$(ONLY)) $(ARGS)

# The benchmarks of ONLY=NAME, and the extras to install besides job and dev. Without ONLY, those that
# need neither a container nor a GPU.
FIGURES := op stall data train serve job-start deaths gpu
figures-op := operator.op_crop operator.op_index operator.op_resized operator.op_augment
figures-stall := training.stall_step
figures-data := data.data_formats data.data_reading data.data_index data.data_phones
figures-train := training.train_overhead training.parity
figures-serve := serving.serve_speed
figures-job-start := job_start
figures-deaths := training.train_interruptions
figures-gpu := gpu.gpu_check
figures- := $(foreach name,op stall data train serve deaths,$(figures-$(name)))
figure-installs-op := bench
figure-installs-train := timm
figure-installs-stall := bench
figure-installs-serve := bench
figure-installs-gpu := timm bench
figure-installs- := bench timm
figures: ## Measure again: ONLY=op|stall|data|train|serve|...
	$(call check_only,$(FIGURES))@$(READY) job dev $(figure-installs-$(ONLY))
	@for module in $(figures-$(ONLY)); do $(PY) -m benchmarks.$$module $(ARGS); done

lint: ## ruff, mypy, clang-format, shellcheck, hadolint, cfn-lint
	@$(READY) job dev
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m mypy $(CODE)
	.venv/bin/clang-format --dry-run -Werror $$(git ls-files '*.cpp' '*.h')
	.venv/bin/shellcheck .ci/run $$(git ls-files '*.sh')
	.venv/bin/hadolint Dockerfile
	.venv/bin/cfn-lint launch/account.yaml

format: ## Format every file as lint wants it
	@$(READY) job dev
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)
	.venv/bin/clang-format -i $$(git ls-files '*.cpp' '*.h')

clean: ## Remove environments and caches; runs/ and data/ stay
	$(if $(ARGS),$(error clean takes no ARGS; rm -r runs/NAME removes a run))rm -rf .venv .venv-* .setup.lock .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
