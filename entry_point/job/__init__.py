"""The job: what SageMaker, a launcher and the job agree on, its processes and its devices.

1. `program` ends every program: exit codes, errors as printable lines, the file with a failure's
   reason.
2. `run_folder` is the folder of a run, `hosts` the machines of a job and their GPUs;
   `metrics_line` is what SageMaker finds in the log, `own_code` the code that was sent with the
   job, `archive` how a model is unpacked. A launcher uses these, so they need the standard library
   only.
3. `training_job` composes the configuration, and starts the processes of `ranks`, one per device.
4. In a rank, `devices` chooses the device and joins the other ranks, `RankWatch` of `ranks` says
   which rank the others wait for, and `stop` has all of them stop after the same step.

A launcher sets these environment variables of ours: `ML_ROOT` names the run folder,
`CHECKPOINTS_PER_JOB` is set where jobs share a prefix for checkpoints, `OWN_CODE` is the hash of
the code that was sent, and `TRAIN_LINK_LATEST` the run folder that becomes `latest`. The
container's first process sets `OWN_CODE_FOLDER` once that hash is right.
"""
