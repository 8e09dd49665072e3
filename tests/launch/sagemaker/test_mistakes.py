"""What would cost money, an hour or data is one line that names the key, the value and the remedy.

Each case meets the line in a dry run, types what it says, and has a request.
"""

import json
import re
import shlex
from fnmatch import fnmatchcase

import pytest

from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker.checks import problems
from launch.sagemaker.plan import plan
from tests.launch.conftest import IMAGE, MINIMAL, REGION, REGISTRY, ROLE, Terminal

pytestmark = pytest.mark.usefixtures("dry_run")

DATA = "/opt/ml/input/data"
CHANNEL = "job.channels.training"
PHOTOS = f"{CHANNEL}=s3://b/photos/"
EUROPE = f"{REGISTRY.replace(REGION, 'eusc-de-east-1').replace('.com', '.eu')}/ab:1"
RANKS = "optim.accumulate=8 trainer.nproc_per_host=8 target.instance_count=3"
AWS_CHANNEL = (
    "job.request.InputDataConfig=[{{ChannelName:{},InputMode:{},"
    "DataSource:{{S3DataSource:{{S3DataType:S3Prefix,S3Uri:'s3://b/x/'}}}}}}]"
)
# What is typed beside MINIMAL, the beginning of the line (* is any text), and what whoever follows
# it types instead; "" if the line cannot know it.
MISTAKES = [
    # Keys and values.
    ("optim.learning_rate=1", "optim.learning_rate=1: no such key; docs/set*", "optim.lr=1"),
    ("jbo.role=x", "jbo.role=x: no such key; did you mean job.role?", f"job.role={ROLE}"),
    ("role=x", "role=x: no such key; did you mean job.role?", f"job.role={ROLE}"),
    ("channels.x=s3://b/x/", "channels.x=s3://b/x/: no such key; did you mean job.channels.x?", ""),
    ("training=s3://b/x/", "training=*: no such key; did you mean job.channels.training?", ""),
    ("resume_form=x", "resume_form=x: no such key; did you mean resume_from?", "resume_from=x"),
    ("target.spott=true", "target.spott=true: * did you mean target.spot?", "target.spot=true"),
    ("target=gpuu", "target=gpuu: must be one of cpu, gpu, *; did you mean gpu", "target=gpu"),
    ("job=mine", "job=mine: is a group of settings: set job.name=mine", "job.name=mine"),
    ("job.code=yes", "job.code=yes: Input should be a valid boolean", "job.code=true"),
    ("optim.lr=0.1,0.2", "optim.lr=0.1,0.2: has several values; start a job", "optim.lr=0.1"),
    ("a=[1", "a=*1: not an override", ""),
    ("resume_from=/tmp/run", "resume_from=/tmp/run: must be the name of a job", "resume_from=a"),
    ("job.queue=night", "job.queue=night: retired: use the SageMaker SDK's TrainingQueue", ""),
    ("~seed", "~seed: a job on SageMaker takes key=value only; type seed=null", ""),
    ("job.name=code", "job.name=code: that folder of job.output is for every", "job.name=mine"),
    ("job.role=null", "job.role is missing; `make setup-aws` creates", f"job.role={ROLE}"),
    ("job.output=null", "job.output is missing; set it to an S3 prefix, s3", "job.output=s3://a/b"),
    ("job.output=my-bucket", "job.output=my-bucket: must be s3://bucket/p", "job.output=s3://a/b"),
    ("resume_from=s3:///x", "resume_from=s3:///x: must be s3://bucket/prefix", "resume_from=a"),
    ("target.image=null", "target.image is missing; `make push` prints", f"target.image={IMAGE}"),
    # The machines and their image.
    (
        f"target.image={REGISTRY}/ab:gpu-1",
        f"target.image={REGISTRY}/ab:gpu-1: its tag is for GPUs, but ml.c7i.2xlarge is a CPU type; "
        "choose a GPU type, as target=gpu does, or `make image push DEVICE=cpu` makes one for it",
        f"target.image={REGISTRY}/ab:gpu-1 target=gpu",
    ),
    (
        f"target=gpu target.image={REGISTRY}/ab:cpu-1",
        f"target.image={REGISTRY}/ab:cpu-1: its tag is for CPUs, but ml.g6.4xlarge is a GPU type",
        f"target=gpu target.image={REGISTRY}/ab:cu130-1",
    ),
    ("target.image=pytorch:1", "target.image=pytorch:1: must be in a private ECR *make push", ""),
    (
        f"target.image={EUROPE}",
        f"target.image={EUROPE}: must be in the job's region, {REGION}; push it there, or set "
        "AWS_DEFAULT_REGION=eusc-de-east-1",
        f"target.image={EUROPE} AWS_DEFAULT_REGION=eusc-de-east-1",
    ),
    (
        "target.instance_type=ML.C7i.large",
        "target.instance_type=ML.C7i.large: must be a type *; did you mean ml.c7i.large?",
        "target.instance_type=ml.c7i.large",
    ),
    (
        "trainer.device=cuda",
        "trainer.device=cuda: ml.c7i.2xlarge has no GPU; add target=gpu, or drop it",
        "trainer.device=cuda target=gpu",
    ),
    (
        f"trainer.batch_size=64 {RANKS}",
        "trainer.batch_size=64: must be a multiple of 192, ranks=24 x optim.accumulate=8 on 3 host",
        f"trainer.batch_size=192 {RANKS}",
    ),
    (
        "job.network.VpcConfig.Subnets=[subnet-0a1b2c3d]",
        'Missing required parameter in VpcConfig: "SecurityGroupIds"',
        "job.network.VpcConfig={Subnets:[subnet-0a1b2c3d],SecurityGroupIds:[sg-0a1b2c3d]}",
    ),
    # What the job reads.
    (
        "data=folder",
        "data=folder: data.root is not set and there is no channel training; add ",
        "+",
    ),
    (
        "job.channels.photos=s3://b/photos/",
        "data=auto: data.root is not set and there is no channel training; add data.root=/opt",
        f"job.channels.photos=s3://b/photos/ data.root={DATA}/photos",
    ),
    (f"data=folder {PHOTOS[:-1]}", f"{PHOTOS[:-1]}: must end in / in FastFile mode", f"{PHOTOS}"),
    (
        f"{CHANNEL}=/home/me/photos",
        f"{CHANNEL}=/home/me/photos: must be s3://bucket/prefix; *make upload",
        f"{CHANNEL}=s3://bucket/prefix/",
    ),
    ("job.channels.x={mode:File}", "job.channels.x: must have job.channels.x.s3 or job.chan", ""),
    (
        "job.channels.x={s3:s3://b/,source:{A:{}}}",
        "job.channels.x: must have *, and not both; ~job.channels.x drops it",
        "",
    ),
    ("job.channels.x={s3:s3://b/x,modus:File}", "job.channels.x.modus", ""),
    (
        f"{CHANNEL}={{s3:s3://b/a/,mode:Pipe}}",
        f"{CHANNEL}.mode=Pipe: Input should be 'File' or 'FastFile'",
        f"{CHANNEL}={{s3:s3://b/a/,mode:File}}",
    ),
    (
        f"target.instance_count=2 data=shards {CHANNEL}={{s3:s3://b/x/,distribution:ShardedByS3Key}}",
        f"{CHANNEL}: with ShardedByS3Key, each of the 2 hosts would get only a share, and training "
        "reads all of it on every host; drop it",
        f"target.instance_count=2 data=shards {CHANNEL}=s3://b/x/",
    ),
    ("data=folder data.root=photos", "data.root=photos: a path on this machine, but the job*", "+"),
    ("data=folder data.root=/", "data.root=/: a path on this machine", "+"),
    ("data=folder data.root=/home/me/x", "data.root=/home/me/x: a path on this machine", "+"),
    (
        "data=folder data.root=s3://b/y=4",
        "data.root=s3://b/y=4: * as a channel: *NAME=s3://b/y=4/",
        "+",
    ),
    ("data=manifest data.root=s3://b/l/a.csv", "data.root=s3://b/l/a.csv: *NAME/a.csv", "+"),
    (f"data=folder data.root={DATA}/x", f"data.root={DATA}/x: there is no channel x; add", "+"),
    (f"{PHOTOS} data=manifest data.images=photos", "data.images=photos: a path on this", "+"),
    (
        f"data=shards data.root=/baked data.access=stream data.index_root={DATA}/i",
        f"data.index_root={DATA}/i: there is no channel i; add job.channels.i=s3://",
        "+",
    ),
    (
        "experiment=finetune data.root=/baked",
        "model.weights=pretrained: there is no channel pretrained; after `make weights "
        "ARGS=resnet50` and `make upload` add job.channels.pretrained=s3://",
        "+",
    ),
    ("model.weights=a.pth", "model.weights=a.pth: a path on this machine", "+"),
    (f"{PHOTOS} model.weights=training/a.pth", "model.weights=training/a.pth: a path on", "+"),
    ("model.weights=other", "model.weights=other: there is no channel other", "+"),
    ("model.weights=s3://b/w/a.pth", "model.weights=s3://b/w/a.pth: *NAME/a.pth", "+"),
    (
        "model.weights=s3://b/jobs/run-1/output/model.tar.gz",
        "model.weights=s3://b/jobs/run-1/output/model.tar.gz: is an archive; unpack it: `make "
        'sagemaker ARGS="download JOB"`; then',
        "+",
    ),
    (
        f"job.channels.base=s3://b/o/ model.weights={DATA}/base/model.tar.gz",
        f"model.weights={DATA}/base/model.tar.gz: is an archive; unpack it",
        "job.channels.base=s3://b/base/ model.weights=base",
    ),
    # Members of the request are read as the job reads them.
    (
        "job.request.CheckpointConfig.LocalPath=/tmp/ck",
        "job.request.CheckpointConfig.LocalPath=/tmp/ck: the job writes to /opt/ml/checkpoints",
        "",
    ),
    (
        "job.request.OutputDataConfig.CompressionType=NONE",
        "job.request.OutputDataConfig.CompressionType=NONE: *model.tar.gz; drop it",
        "",
    ),
    ("job.request.HyperParameters.data=folder", "data=folder: data.root is not set", ""),
    ("job.request.HyperParameters.optim__lrr='1'", "optim.lrr*did you mean optim.lr", ""),
    (
        f"data=folder {AWS_CHANNEL.format('other', 'File')}",
        "data=folder: * no channel training; *; job.request.InputDataConfig replaces all of",
        f"data=folder {AWS_CHANNEL.format('training', 'File')}",
    ),
    (
        f"data=folder {AWS_CHANNEL.format('training', 'Pipe')}",
        "job.request.InputDataConfig.training.InputMode=Pipe: the job reads files; must be File",
        f"data=folder {AWS_CHANNEL.format('training', 'FastFile')}",
    ),
    (
        "job.request.AlgorithmSpecification.ContainerArguments=[serve]",
        "job.request.AlgorithmSpecification.ContainerArguments=*: must begin with train;",
        "job.request.AlgorithmSpecification.ContainerArguments=[train]",
    ),
    (
        "job.request.AlgorithmSpecification.ContainerArguments=[train,'trainer.epochs=0']",
        "trainer.epochs=0: Input should be greater than or equal to 1",
        "job.request.AlgorithmSpecification.ContainerArguments=[train,'trainer.epochs=2']",
    ),
    (
        "job.request.ResourceConfig.InstanceType=g6.xlarge",
        "job.request.ResourceConfig.InstanceType=g6.xlarge: must be a type of SageMaker's",
        "job.request.ResourceConfig.InstanceType=ml.g6.xlarge",
    ),
    ("job.request.ResourceConfig.InstanceCount=3", "trainer.batch_size=32: must be a multiple", ""),
    (
        "job.request.ResourceConfig={InstanceType:null,InstanceCount:null,InstancePreferences:"
        "[{InstanceType:ml.c7i.large,InstanceCount:2},{InstanceType:ml.m7i.large,InstanceCount:3}]}",
        "trainer.batch_size=32: must be a multiple of 3, ranks=3 x optim.accumulate=1 on 3 hosts",
        "",
    ),
    (
        "resume_from=s3://b/kept job.request.CheckpointConfig=null",
        "resume_from=s3://b/kept: job.request.CheckpointConfig replaces it; drop one of them",
        "resume_from=s3://b/kept",
    ),
    (
        "resume_from=a job.request.CheckpointConfig.S3Uri=s3://b/other",
        "resume_from=a: job.request.CheckpointConfig replaces it; drop one of them",
        "job.request.CheckpointConfig.S3Uri=s3://b/other",
    ),
    (
        f"job.request.AlgorithmSpecification.TrainingImage='{EUROPE}'",
        f"job.request.AlgorithmSpecification.TrainingImage={EUROPE}: must be in the job's region",
        "",
    ),
    ("job.environment.ML_ROOT=/tmp", "job.environment.ML_ROOT=/tmp: SageMaker reads and fills", ""),
    ("job.request.Colour=red", 'Unknown parameter in input: "Colour"', ""),
    # Your own code.
    (
        "job.code=true job.channels.code=s3://bucket/mine/",
        "job.channels.code: job.code=true sends your code in a channel of this name; give yours",
        f"job.code=true job.channels.mine=s3://bucket/mine/ data.root={DATA}/mine",
    ),
    (
        "job.code=true job.request.InputDataConfig=null",
        "job.code=true: its channel is not sent; add job.channels.code",
        "",
    ),
]
# As a user types them, and nothing is wrong.
JOBS = [
    "target=gpu_spot",
    "target=multi_gpu",
    f"target.image={REGISTRY}/gpu-team/b",
    "target.instance_type=ml.g99.xlarge trainer.batch_size=7",
    f"data=folder {PHOTOS} data.root={DATA}/training/photos",
    "data=folder job.channels.train=s3://b/t/ job.channels.validation=s3://b/v/",
    "data=folder data.root=/baked model.weights=/baked/resnet18.pth",
    "data=folder data.root=/homeless",
    f"data=folder data.root=/{'x' * 300}",
    f"data=shards {CHANNEL}={{s3:s3://b/x/,distribution:ShardedByS3Key}}",
    f"{PHOTOS} model.weights=training/resnet18 model.name=my_models.net",
    "job.channels.pretrained=s3://b/p/ model.weights=pretrained",
    "job.environment.ML_ROOT=/opt/ml job.environment.OWN=1",
    "job.request.CheckpointConfig.LocalPath=/opt/ml/checkpoints/",
    "job.request.HyperParameters={trainer.epochs:'2'}",
]


def launch(text: str) -> list[str]:
    """The arguments of a launch that has the minimal settings and these."""
    given = text.split()
    keys = {each.partition("=")[0] for each in given}
    return ["train", *(each for each in MINIMAL if each.partition("=")[0] not in keys), *given]


def followed(given: str, line: str) -> str:
    """What was given, with the settings that the line prints."""
    advice = line.replace("NAME", "extra").partition(";")[2] or line
    added = re.findall(r"[a-z_.]+\.\w+=\S+", advice)
    keys = {each.partition("=")[0] for each in added}
    return " ".join([each for each in given.split() if each.partition("=")[0] not in keys] + added)


@pytest.mark.parametrize(
    ("given", "says", "then"), MISTAKES, ids=[given[:60] for given, _, _ in MISTAKES]
)
def test_a_mistake_is_one_line_and_whoever_follows_it_has_a_request(
    given: str, says: str, then: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = terminal.refusal(sagemaker.main, *launch(given))
    assert fnmatchcase(line, f"{says}*"), line
    if then:
        *words, last = (followed(given, line) if then == "+" else then).split()
        name, _, value = last.partition("=")
        if name.isupper():
            monkeypatch.setenv(name, value)
        else:
            words.append(last)
        assert json.loads(terminal.out(sagemaker.main, *launch(" ".join(words))))


def test_a_prefix_with_a_blank_and_a_comma_is_advised_as_it_is_typed(terminal: Terminal) -> None:
    words = launch("data=folder")
    line = terminal.refusal(sagemaker.main, *words, "data.root='s3://b/a, b/'")
    advised = shlex.split(line.partition("as a channel: ")[2])
    request = json.loads(terminal.out(sagemaker.main, *words, *advised))
    (channel,) = request["InputDataConfig"]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == "s3://b/a, b/"


@pytest.mark.parametrize("given", JOBS, ids=lambda given: given[:60])
def test_a_job_that_can_run_is_not_refused(given: str, terminal: Terminal) -> None:
    assert json.loads(terminal.out(sagemaker.main, *launch(given)))


def test_all_problems_are_told_at_once(terminal: Terminal) -> None:
    given = f"target.image={REGISTRY}/ab:gpu-1 job.role=null data=folder "
    more = "trainer.batch_size=33 target.instance_count=2"
    assert len(terminal.refusals(sagemaker.main, *launch(given + more))) == 4


def test_the_region_of_an_image_is_not_checked_while_that_of_the_job_is_unknown() -> None:
    assert list(problems(plan(launch(f"target.image={EUROPE}")[1:], None), None)) == []
