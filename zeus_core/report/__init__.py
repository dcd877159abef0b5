"""Reports for people: pages, texts and pictures of runs."""
