"""Parts of pages outside of the benchmarks: the reference of objects, tested versions, sizes, hints, citation."""
