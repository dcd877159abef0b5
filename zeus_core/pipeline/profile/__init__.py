"""The pipelines of a job, and what is measured of them: steps, instructions at each clock, whole iterations."""
