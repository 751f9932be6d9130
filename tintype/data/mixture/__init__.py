"""Several image sources as the data of one run. Each source has a share, which may change with the step."""
