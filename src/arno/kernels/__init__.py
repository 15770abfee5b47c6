"""How the outputs and the gradient of a network are computed.

`choose_kernel` chooses the kernel that computes one network. `stacked` computes many models of one network at once. The
choice depends on what a network computes, never on the name or the class of the network.
"""
