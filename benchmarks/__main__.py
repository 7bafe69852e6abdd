"""`python -m benchmarks` is the comparison of speed; the other modules are commands of their own."""

from benchmarks.speed import main

main()
