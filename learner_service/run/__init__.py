"""The life of a run: its identity, its environment, its evaluations and its end.

A module calls only modules above it in this list. Modules below it get return values.

identity      the files that identify a run: id, spec, time
outcome       the outcome of a run, and the commands of operators, on disk
evaluations   the log of evaluations
best_policy   keeps the policy with the best evaluation
scaling       computes how many actors the run can use
records       the data of the run: members, evaluations, resources, time, training
judge         checks and stores evaluations, and compares them with the target return
lifecycle     begins the training; ends the run, or leaves it to the next learner
preparation   builds the training for the environment, and resets it
connections   admits actors and evaluators, opens their streams, and receives evaluations
run           creates the objects of all modules; pauses, resumes and saves the run
"""
