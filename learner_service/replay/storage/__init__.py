"""The replay on disk: a ring of transitions in memory-mapped files that survives the death of its process.

store         inserts and evicts segments
rows          turns segments into rows of the ring
columns       the files of the ring, one for each field
directory     the log of committed segments
sequences     the last segment of each actor, so that none is stored twice
description   meta.json and its copy
files         claims, mapped files and checked values, of which all the others are made
space         takes disk space before it is needed
durability    keeps account of the segments that survive a power cut
recovery      keeps the whole segments when the files are opened again
verify        checks the files and changes none of them
"""
