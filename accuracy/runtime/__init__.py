"""What a process lets torch do: device, arithmetic switches, time and memory, shards of tensors."""
