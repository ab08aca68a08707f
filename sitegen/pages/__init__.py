"""Generated parts of other pages than benchmarks: reference of objects, tested versions, sizes, hints, citation."""
