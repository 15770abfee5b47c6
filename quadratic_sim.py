"""The command line of the power-of-choice study on quadratics: prints and runs the `arno quadratic` that it means."""

from arno.cli.quadratic_sim import main

if __name__ == "__main__":
    main()
