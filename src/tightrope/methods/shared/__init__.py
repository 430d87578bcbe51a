"""Building blocks of several methods: momentum, estimated constants, schedules, penalty gradients, switching."""
