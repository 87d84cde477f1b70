"""The site: findings by importance, every published report, the experiments, the API and the tutorial, one search."""
