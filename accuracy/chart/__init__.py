"""What all pages share: plain values for tables, colours, and the one environment of templates."""
