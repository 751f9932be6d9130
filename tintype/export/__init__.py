"""Export runs in other formats, import other models as runs, write model cards, and upload to the hub."""
