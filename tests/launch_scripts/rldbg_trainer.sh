rldbg train recipes/arithmetic.yaml name=tour steps=50 "$@"
