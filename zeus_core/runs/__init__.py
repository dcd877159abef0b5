"""A catalogue of the runs of many people: `zeus-core runs`."""
