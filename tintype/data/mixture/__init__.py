"""Several sources of images as the data of one run, each with a share that may change with the step."""
