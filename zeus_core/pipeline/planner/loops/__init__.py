"""The planner's inner loops, compiled by LLVM from their Python source."""
