"""State and side inputs, as the SDK's operations ask for them."""
