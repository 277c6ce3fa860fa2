"""python -m calopd"""

from calopd.cli import main

main()
