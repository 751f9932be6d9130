"""Text encoders behind one protocol (`seams.TextEncoder`)."""
