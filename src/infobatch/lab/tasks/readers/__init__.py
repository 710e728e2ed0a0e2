"""Readers: local files in the layouts people have, as samples of a task.

    found(folder) -> bool      is this layout here?
    read(folder) -> Samples    train, test, class names where the files tell them, and what was read

One file a layout. Nothing is written, nothing a file holds is run, and a file that is broken or not what it should be
is named in the error.
"""
