"""What all packages need of a local disk. Standard library only."""
