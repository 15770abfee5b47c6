"""The command line of FedRCL with QR-Mix: prints the `arno run` that it means, and runs it."""

from arno.cli.fedrcl import main

if __name__ == "__main__":
    main()
