"""What one training step on one device needs to know: units for precision, compilers (chapters 04 to 07)."""
