"""One small file per console command."""
