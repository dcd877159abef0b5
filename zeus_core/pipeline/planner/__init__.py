"""The pure planner: profiles and schedules of pipelines -> frontier -> plans of clocks."""
