"""What runs beside and inside the pods: engine, agent, trainer, and the contracts between them."""
