"""`python -m benchmarks` runs the speed comparison; the other modules are separate commands."""

from benchmarks.speed import main

main()
