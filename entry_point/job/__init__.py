"""The job: its contract with SageMaker and the launchers, its processes and its devices.

1. `program` ends every program: exit codes, errors as printable lines (`text`), and the file with
   the reason of a failure.
2. `run_folder` is the folder of a run, `hosts` the machines of a job, `gpus` the GPUs of this one;
   `metrics_line` has the log lines that SageMaker parses, `own_code` finds the code that was sent
   with the job, `archive` unpacks models. Launchers use these, so they need the standard library
   only.
3. The command `train` (`entry_point/start_training.py`) keeps other jobs out of the run folder with
   `run_lock`, and starts a process per device with `ranks`.
4. In a rank, `devices` chooses the device and joins the other ranks, and `stop` lets all ranks stop
   after the same step.

Launchers set these environment variables: `ML_ROOT` names the run folder, `CHECKPOINTS_PER_JOB` is
set where jobs share a prefix for checkpoints, and `OWN_CODE` is the hash of the code that was sent.
`TRAIN_LINK_LATEST` is the run folder that becomes `latest`, `TRAIN_NEW_RUN` one to remove if the
command is refused, and `TRAIN_RUN_NAME` the name that resumes a run. The container's first process
sets `OWN_CODE_FOLDER` once it has checked the hash, and `TRAIN_BEGAN`, its start time, for its
ranks.
"""
