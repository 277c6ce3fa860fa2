"""python -m calopd.cli"""

from calopd.cli.main import main

main()
