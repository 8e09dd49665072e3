"""The job: what SageMaker, a launcher and the job agree on, its processes and its devices.

1. `program` ends every program: exit codes, errors as printable lines (`text`), the file with a
   failure's reason.
2. `run_folder` is the folder of a run, `hosts` the machines of a job, `gpus` what this one has;
   `metrics_line` is what SageMaker finds in the log, `own_code` the code that was sent with the
   job, `archive` how a model is unpacked. A launcher uses these, so they need the standard library
   only.
3. The command `train` (`entry_point/start_training.py`) keeps other jobs out of the folder by
   `run_lock`, and has `ranks` start a process per device.
4. In a rank, `devices` chooses the device and joins the other ranks, and `stop` has all of them
   stop after the same step.

A launcher sets these environment variables of ours: `ML_ROOT` names the run folder,
`CHECKPOINTS_PER_JOB` is set where jobs share a prefix for checkpoints, and `OWN_CODE` is the hash
of the code that was sent. `TRAIN_LINK_LATEST` is the run folder that becomes `latest`,
`TRAIN_NEW_RUN` one that goes if the command is refused, and `TRAIN_RUN_NAME` the name that resumes
a run. The container's first process sets `OWN_CODE_FOLDER` once the hash is right, and
`TRAIN_BEGAN`, when it began, for its ranks.
"""
