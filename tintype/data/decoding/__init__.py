"""Images are decoded beside the training: in threads, or in processes of their own."""
