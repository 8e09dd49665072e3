"""The programs that run inside the job."""

from entry_point.job import own_code

own_code.find_sent_project()
