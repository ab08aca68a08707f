"""The learner: receives trajectories, trains in FP32 with PyTorch, publishes policies, and controls the run.

Data flows one way: servicer -> intake -> replay -> trainer -> publisher -> quantizer.
"""
