"""Before you spend: what a run will reach, need and cost; numpy and scipy only."""
