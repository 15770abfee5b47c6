"""The few concepts that carry everything: layout, work, part, table, the local kernel and the round."""
