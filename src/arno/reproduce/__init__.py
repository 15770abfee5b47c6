"""Published figures as data: settings, a claim, and the ranges in which it counts as reproduced (`figures/*.yaml`)."""
