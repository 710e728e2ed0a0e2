"""The bench: tasks, nets, one training loop, records of what it did, and comparisons that can tell.

    settings --training.run--> facts (start, epoch, ..., end) --records--> one JSON line each --comparison, report

Needs torch; the tasks, the command line and the report need the extra ``lab``. See docs/lab.md.
"""
