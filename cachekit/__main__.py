"""``python -m cachekit``: the command line where no script is on the path."""

from cachekit.cli import main

if __name__ == "__main__":
    main()
