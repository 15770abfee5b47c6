"""Published figures as data: a setting, a claim, and a band that counts as reproduced; see `figures/*.yaml`."""
