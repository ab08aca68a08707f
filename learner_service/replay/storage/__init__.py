"""The replay on disk: a ring of transitions in memory-mapped files that survives the death of its process.

store         inserts segments
live_segments the segments that are stored now: place, eviction, check
rows          turns segments into rows of the ring
columns       the files of the ring, one for each field
directory     the log of committed segments
next_rows     leads from each step to the next one, across segments
sequences     the last segment of each actor, so that none is stored twice
description   meta.json and its copy
mapped_files  directory locks, mapped files and checked values, which the other modules use
space         takes disk space before it is needed
durability    tracks the segments that survive a power cut
recovery      finds the whole segments when the files are opened again
verify        checks the files without changing them
"""
