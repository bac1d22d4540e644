"""What engines tell of themselves: their own metrics, read from their pods."""
