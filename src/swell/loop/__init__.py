"""What a training loop keeps beside the gradients: metrics, learning-rate schedules, the state of the current step."""
