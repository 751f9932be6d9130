"""Find, hash and load frozen pretrained networks, and preprocess their inputs."""
