"""Charts as SVG for pages; reads numbers only."""
