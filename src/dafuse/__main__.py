from dafuse.cli import main

main()
