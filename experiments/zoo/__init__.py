"""What a diagnosis says of attention that others wrote, healthy and with a fault."""
