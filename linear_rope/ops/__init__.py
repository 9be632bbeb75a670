"""What attention modules compute, a folder an operation: its definition, and the implementations that agree with it."""
