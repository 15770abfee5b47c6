"""The basic concepts: layout, work, part, client table, local training and the round."""
