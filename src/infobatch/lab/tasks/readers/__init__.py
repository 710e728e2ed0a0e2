"""Readers: local files in common layouts, as samples of a task.

    is_present(folder) -> bool    does the folder hold files in this layout?
    read(folder) -> Samples       training set, test set, class names if the files have them, and what was read

There is one module per layout. Readers write nothing, run nothing from a file, and raise errors that name the file.
"""
