"""Small AgiBot-like deliveries with the classic faults, and toy models, for 'make reproduce' and for tests."""
