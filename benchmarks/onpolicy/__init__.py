"""On-policy training with quantized actors: returns, speed, correction, lag, throughput."""
