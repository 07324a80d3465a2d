"""Hugging Face's Accelerate: the loop stays as it is, the job behind it has the batch, the gradients and the data."""
