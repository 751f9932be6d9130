"""What leaves the lab: the weights in others' form, the card that says what they are, and the way to the hub."""
