"""What decides which weights are kept: schedules, structures, initial masks, algorithms."""
