"""The lab: tasks, nets, a training loop, records of runs, and comparisons with verdicts.

    settings --train.loop.run--> facts (start, epoch, ..., end) --records--> JSON lines --comparison, report

Needs torch; the tasks, the command line and the report need the extra ``lab``. See docs/lab.md.
"""
