"""From deliveries to one training-ready dataset: select, unify, slice, join."""
