from tintype.cli import main

main()
