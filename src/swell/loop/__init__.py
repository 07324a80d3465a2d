"""What a training loop keeps beside the gradients: the pace, metrics, learning-rate schedules, the current step."""
